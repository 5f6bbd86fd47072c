"""`python -m agent` is `faultline`."""

from agent.cli import main

main()
