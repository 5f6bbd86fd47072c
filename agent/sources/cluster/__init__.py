"""What the API server knows of pods and nodes, fetched. Decides nothing about what it says."""
