"""Functions and arrays that cross between PyTorch and JAX."""
