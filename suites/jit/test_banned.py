"""Rule banned, compiled: `ampcheck.spec.rules` says what it promises."""

from ampcheck.cases import Case
from ampcheck.devices import Device
from ampcheck.suite import check, op_cases


@op_cases("banned", compiled=True)
def test_banned(case: Case, device: Device) -> None:
    check(case, device)
