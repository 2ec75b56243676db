"""The number of PyTorch's OpInfo samples that a JAX implementation of its ops computes as the CPU does.

Two implementations are measured, each in separate worker processes: the device of `ampcheck.jax_device`, and torchax.
This package imports neither by itself, because torchax's function mode and the device would meet in one process.
`python -m scripts.jax_coverage` is the command.
"""
