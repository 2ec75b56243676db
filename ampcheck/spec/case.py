"""A case: which op, with which inputs, under which region, on which device. Frozen, and cheap to make."""

from dataclasses import asdict, dataclass
from functools import cached_property

from ampcheck.spec.ids import case_id

AROUND = "around"
"""The sample of a compiled case whose region is around the compiled function, not inside."""

CELLS = "cells"
"""The sample of a case that sweeps the cells of an op; its `inputs` is a gradient mode. See `ampcheck.checks.sweep`."""

GRADIENT = "-grad"
"""The end of the dtype assignment of a case whose gradient is checked."""


@dataclass(frozen=True)
class Case:
    """One thing to run and check.

    `suite`: eager, jit, autograd or scaler. `rule`: a name of `ampcheck.spec.rules`. `op`: an overload, or the name of
    a scenario. `sample`: "" for the op's main sample. `inputs`: the dtype assignment, as `ampcheck.spec.ids.assign`
    reads it. `amp`: the region's dtype. `device`: the device's name on the command line, `token` its name in ids.
    `compiler`: what runs it, a name of `ampcheck.spec.compilers`; "" for a suite that runs everything in one way.
    """

    suite: str
    rule: str
    op: str
    sample: str
    inputs: str
    amp: str
    device: str
    token: str
    compiler: str = ""

    @cached_property
    def id(self) -> str:
        return case_id(self.op, self.sample, self.inputs, self.amp, self.token, self.compiler)

    @property
    def key(self) -> str:
        """Its name across runs: `suite/rule/id`."""
        return f"{self.suite}/{self.rule}/{self.id}"

    @property
    def name(self) -> str:
        """Return its name in deviations; see `deviation_name`."""
        return deviation_name(self.suite, self.rule, self.id, self.compiler)

    def fields(self) -> dict[str, str]:
        """Return the fields of a result that are known before the case runs, without empty ones: JSON, for a child."""
        known = {name: value for name, value in asdict(self).items() if value and name != "token"}
        return {"id": self.id, **known}


def deviation_name(suite: str, rule: str, case: str, compiler: str) -> str:
    """Return a case's name in deviations: `rule/id` in every suite, but `suite/rule/id` for one with a compiler."""
    return f"{suite}/{rule}/{case}" if compiler else f"{rule}/{case}"
