"""What the API server says of this node and its pods. Reads; decides nothing."""
