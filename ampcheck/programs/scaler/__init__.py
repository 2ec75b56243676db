"""Random programs of a GradScaler: run on torch, and on a reference in plain torch that follows its model."""
