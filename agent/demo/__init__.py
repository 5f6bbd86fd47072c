"""The demo: a made-up node with a true story, lived through by the real agent."""
