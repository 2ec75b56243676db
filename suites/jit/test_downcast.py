"""Rule downcast, compiled: `ampcheck.spec.rules` says what it promises."""

from ampcheck.cases import Case
from ampcheck.devices import Device
from ampcheck.suite import check, op_cases


@op_cases("downcast", compiled=True)
def test_downcast(case: Case, device: Device) -> None:
    check(case, device)
