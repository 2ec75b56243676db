"""Rule optdtype, compiled: `ampcheck.spec.rules` says what it promises."""

from ampcheck.cases import Case
from ampcheck.devices import Device
from ampcheck.suite import check, op_cases


@op_cases("optdtype", compiled=True)
def test_optdtype(case: Case, device: Device) -> None:
    check(case, device)
