"""Ways in which the pass for TorchScript could do something else than eager autocast.

The suites have no cases of the pass; the agreement of rewritten programs with eager ones is measured in their place.
"""

import warnings
from collections.abc import Sequence

import torch

from ampcheck import torchscript
from ampcheck.devices.registry import select
from ampcheck.torchscript import rewrite
from ampcheck.torchscript.agreement import OURS, measure
from ampcheck.torchscript.regions import scripted
from tests.faults.mutant import Inject, Result, mutants, put
from tests.torchscript import programs as known_programs
from tests.torchscript.test_modules import AMBIENT, around, given

AGREEMENT = "torchscript/agreement"


def agreement(device: str, ids: Sequence[str]) -> list[Result]:
    """Compare rewritten programs, or regions of an overload, with eager mode."""
    return [_result(device, name) for name in ids]


def _result(device: str, name: str) -> Result:
    if name in {program.__name__ for program in known_programs.PROGRAMS}:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript has no is_autocast_enabled of a type
            texts = _of_program(name)
    else:
        measured = measure(select([device], [])[0], {OURS: torchscript.autocast}, name)
        texts = [text for one in measured for found in one.differences.get(OURS, {}).values() for text in found]
    suite, rule = AGREEMENT.split("/")
    status = "fail" if texts else "pass"
    return {"suite": suite, "rule": rule, "id": name, "status": status, "message": "\n".join(texts)}


def _of_program(name: str) -> list[str]:
    """Return the differences of a rewritten program from the eager one, in each state of its caller."""
    program = getattr(known_programs, name)
    rewritten = torchscript.autocast(scripted(program))
    out = []
    for ambient, dtype in AMBIENT.items():
        with around(dtype):
            want = program(*given(), True)
            try:
                got = rewritten(*given(), True)
            except RuntimeError as error:
                out.append(f"{name} in {ambient} raised {error}")
                continue
        for place, (g, w) in enumerate(zip(got, want, strict=True)):
            if g.dtype != w.dtype or not torch.equal(g, w):
                out.append(f"result {place} of {name} in {ambient} is {g.dtype}; expected {w.dtype}")
    return out


def forgetting(kind: str) -> Inject:
    """Let the pass not see values of a kind."""
    return put(rewrite, _TENSORS={name: what for name, what in rewrite._TENSORS.items() if what != kind})


PASS = {
    "pass-forgets-what-may-be-none": forgetting("optional"),
    "pass-the-other-table": put(rewrite, TABLES={"cpu": "AutocastCUDA", "cuda": "AutocastCPU"}),
}
MUTANTS = mutants({AGREEMENT: PASS})
"""Mutants of what the pass looks up; those of its source are in `tests/faults/edits.toml`."""
