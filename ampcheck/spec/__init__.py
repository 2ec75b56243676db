"""PyTorch's promises in plain Python and data: no device, no torch, no I/O beyond reading the tables."""
