"""Rule drift: `ampcheck.spec.rules` says what it promises. There are cases only on a torch that no table covers."""

from ampcheck.cases import Case
from ampcheck.checks import CheckFailure
from ampcheck.devices import Device
from ampcheck.drift_verdict import check_drift
from ampcheck.suite import op_cases


@op_cases("drift")
def test_drift(case: Case, device: Device) -> None:
    if differences := check_drift(case, device):
        raise CheckFailure(differences)
