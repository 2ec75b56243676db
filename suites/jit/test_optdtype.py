"""Rule optdtype, compiled: `ampcheck.spec.rules` says what it promises."""

from ampcheck.devices import Device
from ampcheck.runner.suite import check, op_cases
from ampcheck.spec.case import Case


@op_cases("optdtype", compiled=True)
def test_optdtype(case: Case, device: Device) -> None:
    check(case, device)
