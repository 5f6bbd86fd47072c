"""Random bytes against every parser, for as long as one likes (`make fuzz`)."""
