"""Rule upcast, compiled: `ampcheck.spec.rules` says what it promises."""

from ampcheck.cases import Case
from ampcheck.devices import Device
from ampcheck.suite import check, op_cases


@op_cases("upcast", compiled=True)
def test_upcast(case: Case, device: Device) -> None:
    check(case, device)
