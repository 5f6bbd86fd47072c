"""What the node's own files say of its GPUs and their driver. Opens no device and needs no NVIDIA library."""
