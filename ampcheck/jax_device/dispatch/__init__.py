"""From a dispatched op to a compiled XLA program: schema, call, program, kernels, and their registration."""
