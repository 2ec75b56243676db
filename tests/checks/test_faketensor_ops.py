"""The ops of rule faketensor: those of the op database without a policy that reach a kernel with one."""

import logging
import warnings

import pytest
import torch

from ampcheck.devices.registry import known
from ampcheck.observe.dispatcher import recording
from ampcheck.runner.suite import DeviceAmp
from ampcheck.samples import op_database
from ampcheck.spec.policies import minor
from suites.jit.test_faketensor import COMPOSED, OPS, PHASES, _called

CPU = known()["cpu"]
OWN = minor(torch.__version__) == "2.13"
"""The list is of this version: others have other kernels and derivatives."""


def _reaches(op: str, number: int, given: str = "wide") -> set[str]:
    """Return the overloads with a policy whose kernels a sample of an op enters, forward and backward."""
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), recording([CPU.key]) as entered:
        warnings.simplefilter("ignore")
        for phase in PHASES:
            _called(DeviceAmp(CPU, "bf16"), op, given, phase, "real", number)
    return {overload for _, overload in entered} & CPU.policies().keys()


def test_an_op_that_is_made_of_none_reaches_no_kernel() -> None:
    assert _reaches("sin", 0) == set()
    assert _reaches("mm", 0) == {"mm"}


@pytest.mark.nightly
@pytest.mark.skipif(not OWN, reason="the list is of torch 2.13")
def test_the_list_is_whole() -> None:
    """Each other op of the database has a policy, is composed by PyTorch's tests, or reaches no kernel with one."""
    found = {}
    for name, row in op_database.rows().items():
        overloads = row.overloads.split()
        own = overloads and all(overload in CPU.policies() for overload in overloads)
        if own or name in COMPOSED:
            continue
        for number in range(4):
            if _reaches(name, number):
                found[name] = number
                break
    assert found == OPS
