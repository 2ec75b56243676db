"""How the jax device trains models that people train, beside the CPU: `python -m ampcheck.tools.jax_models`."""
