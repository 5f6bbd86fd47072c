"""Pure: what the signals mean together. Ledger of faults, log of failures, correlation, verdicts."""
