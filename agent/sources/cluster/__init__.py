"""What the API server tells of this node's pods. Reads only."""
