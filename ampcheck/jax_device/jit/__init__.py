"""`ampcheck.jax_device.jit`: a training step as one XLA program."""
