"""Benchmarks: float32 beside the lower precisions, timed in turns, their precision checked.

What is measured: `model` (workloads, variants, results as plain data), `workloads/` (one file per family), `variants`
(which variants a workload has where). How: `prepare` (a workload made ready in a variant), `timing`,
`measure` (the process that measures), `group` (its parent). When it counts: `precision_check` with `kernels`, and
`ceilings`. What comes of it: `statistics`, `summary`, `alerts`, `runfile`, `table`, `exports`, `readme`. Beside that:
`estimates/` (of TPUs and GPUs), `advise/` (a user's own step), `verify` (measures the measuring), `machine`.
"""
