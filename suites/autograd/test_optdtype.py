"""Rule optdtype, with gradients: `ampcheck.spec.rules` says what it promises, `ampcheck.checks.backward` what is
checked."""

from ampcheck.devices import Device
from ampcheck.runner.suite import check, op_cases
from ampcheck.spec.case import Case


@op_cases("optdtype")
def test_optdtype(case: Case, device: Device) -> None:
    check(case, device)
