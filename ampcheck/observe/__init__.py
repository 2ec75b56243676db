"""Observing a call: the kernels and casts that ran, the state it left, the threads it ran in."""
