"""Holds the rules against SGLang's own source, for whoever keeps them; the running agent imports nothing of it."""
