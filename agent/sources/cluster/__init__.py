"""What the API server tells of this node, followed by watches: pods, device slices. Writes nothing there."""
