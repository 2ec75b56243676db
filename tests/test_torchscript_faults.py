"""The agreement check finds every fault planted in the pass for TorchScript; without one it finds nothing."""

from __future__ import annotations

import pytest
import torch

from ampcheck import torchscript
from ampcheck.checks.torchscript_agreement import OURS, measure
from ampcheck.devices.registry import select
from ampcheck.torchscript.regions import scripted
from tests.faults.torchscript_pass import FAULTS, PassFault
from tests.torchscript import programs
from tests.torchscript.test_regions import AMBIENT, around, given

pytestmark = pytest.mark.filterwarnings(r"ignore:.*is_autocast_cpu_enabled:DeprecationWarning")


def differences(name: str) -> list[str]:
    """How a rewritten program differs from the eager one, in each state of its caller."""
    program = getattr(programs, name)
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


def found(fault: PassFault) -> list[list[str]]:
    """The differences of each program and op that the fault must show in."""
    programs = [differences(name) for name in fault.programs]
    ops = [list(measure(select([device], [])[0], {OURS: torchscript.autocast}, op)) for device, op in fault.ops]
    return programs + [
        [text for one in measured for texts in one.differences.get(OURS, {}).values() for text in texts]
        for measured in ops
    ]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_is_found(fault: PassFault) -> None:
    unharmed = found(fault)
    assert unharmed
    assert unharmed == [[] for _ in unharmed], "there are differences without the fault"
    with fault.plant():
        harmed = found(fault)
    for texts in harmed:
        assert any(fault.says in text for text in texts), f"no difference says {fault.says!r}: {texts[:3]}"
    assert found(fault) == unharmed
