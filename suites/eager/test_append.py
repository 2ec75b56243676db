"""Rule append: `ampcheck.spec.rules` says what it promises."""

from ampcheck.devices import Device
from ampcheck.runner.suite import check, op_cases
from ampcheck.spec.case import Case


@op_cases("append")
def test_append(case: Case, device: Device) -> None:
    check(case, device)
