"""Rule downcast, with gradients: `ampcheck.spec.rules` says what it promises, `ampcheck.gradients` what is checked."""

from ampcheck.cases import Case
from ampcheck.devices import Device
from ampcheck.suite import check, op_cases


@op_cases("downcast")
def test_downcast(case: Case, device: Device) -> None:
    check(case, device)
