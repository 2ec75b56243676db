"""How the jax device trains models that people train, beside the CPU: `python -m scripts.jax_models`."""
