"""Reads the files and the standard input that a person hands in. Decides nothing about what they say."""

from agent.sources.handed.reader import BLOCK, MAX_UNPACKED, Handed, UnusableInput, handed_text, open_handed

__all__ = ["BLOCK", "MAX_UNPACKED", "Handed", "UnusableInput", "handed_text", "open_handed"]
