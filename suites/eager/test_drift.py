"""Rule drift: `ampcheck.spec.rules` says what it promises. There are cases only on a torch that no table covers."""

from ampcheck.checks.drift import check_drift
from ampcheck.devices import Device
from ampcheck.errors import CheckFailure
from ampcheck.runner.suite import op_cases
from ampcheck.spec.case import Case


@op_cases("drift")
def test_drift(case: Case, device: Device) -> None:
    if differences := check_drift(case, device):
        raise CheckFailure(differences)
