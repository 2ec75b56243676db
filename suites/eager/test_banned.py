"""Rule banned: `ampcheck.spec.rules` says what it promises."""

from ampcheck.devices import Device
from ampcheck.runner.suite import check, op_cases
from ampcheck.spec.case import Case


@op_cases("banned")
def test_banned(case: Case, device: Device) -> None:
    check(case, device)
