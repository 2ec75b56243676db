"""Programs of a GradScaler, as data: run on torch and on its model call by call, and shown as source.

`steps` is the data, `sides` the parameters and optimizers. `run` runs a program on torch, on `ampcheck.spec.scaler` and
on a reference in plain torch that unscales the gradients itself. `strategies` draws random ones with Hypothesis,
`render` writes one as plain torch, `explore` looks for one on which torch and the model differ.
"""
