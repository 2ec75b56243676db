"""Random programs of regions, state functions and ops: run on torch, and on the model of `ampcheck.spec.state`."""
