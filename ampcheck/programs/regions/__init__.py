"""Small programs of regions, state changes and ops, as data: run on torch, predicted by the model, shown as source.

    program = (With(Options("cpu", "bf16"), (Op("mm", "cpu", ("fp32", "fp32")),)),)
    differences = compare(run(program, [device]), model(program, facts([device])))

`steps` is the data, `execute` runs it, `model` predicts it with `ampcheck.spec.state`, `render` writes it as plain
torch, `strategies` draws random ones with Hypothesis, `explore` looks for one on which torch and the model differ.
"""

from ampcheck.programs.regions.execute import facts, run
from ampcheck.programs.regions.model import DeviceFacts, compare, known_bugs_hit, model
from ampcheck.programs.regions.render import render
from ampcheck.programs.regions.steps import (
    Catch,
    ClearCache,
    Decorated,
    Generator,
    InferenceMode,
    NoGrad,
    Op,
    Options,
    Program,
    Raise,
    Reenter,
    Seen,
    Set,
    Step,
    Thread,
    UseWeight,
    With,
)

__all__ = [
    "Catch",
    "ClearCache",
    "Decorated",
    "DeviceFacts",
    "Generator",
    "InferenceMode",
    "NoGrad",
    "Op",
    "Options",
    "Program",
    "Raise",
    "Reenter",
    "Seen",
    "Set",
    "Step",
    "Thread",
    "UseWeight",
    "With",
    "compare",
    "facts",
    "known_bugs_hit",
    "model",
    "render",
    "run",
]
