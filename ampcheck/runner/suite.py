"""What a suite file needs: the decorators that make its cases, and the check that runs one.

    from ampcheck.runner.suite import check, op_cases

    @op_cases("promote")
    def test_promote(case, device):
        check(case, device)

`case` is an `ampcheck.checks.cases.Case`, and `device` the device it is to run on.
"""

from collections.abc import Callable
from typing import TypeVar

import pytest

from ampcheck.checks.amp import Amp
from ampcheck.checks.kinds import check_of
from ampcheck.checks.product import Product, other_than, where
from ampcheck.checks.scenario import DeviceAmp, named, promised, scenario
from ampcheck.devices.base import Device
from ampcheck.errors import CheckFailure, HarnessError
from ampcheck.spec.case import Case

__all__ = ["Amp", "DeviceAmp", "Product", "check", "named", "op_cases", "other_than", "promised", "scenario", "where"]

F = TypeVar("F", bound=Callable[..., object])


def op_cases(rule: str, *, database: bool = False, compiled: bool = False) -> Callable[[F], F]:
    """Run the function, which takes `case` and `device`, once for every op case of a rule.

    `database`: and for every op of PyTorch's own op database that has no policy; see `ampcheck.samples.op_database`.
    `compiled`: instead, once for every op case of the rule that runs through a compiler; see `ampcheck.compilers`.
    """

    return pytest.mark.op_cases(rule, database=database, compiled=compiled)


def check(case: Case, device: Device) -> None:
    """Run an op case. Raises CheckFailure with every difference from the specification, else as `Check.run` does."""
    kind = check_of(case)
    if kind is None:
        raise HarnessError(f"{case.id} is a scenario, which its own function runs")
    if differences := kind.run(case, device):
        raise CheckFailure(differences)
