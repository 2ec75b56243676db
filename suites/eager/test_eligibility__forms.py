"""Rule eligibility, for every op whose arguments are cast: `ampcheck.spec.rules` says what it promises."""

import pytest

from ampcheck.checks import layouts
from ampcheck.reproduce.ops import of_layout
from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("eligibility")


@pytest.mark.parametrize("form", list(layouts.LAYOUTS))
@scenario(dtypes="default")
def test_any_form(amp: Amp, form: str) -> None:
    """Dtype and device alone decide whether a tensor is cast, not strides or history (autocast_mode.h, is_eligible)."""
    if form == "computed" and not amp.device.has_values:
        amp.unsupported("a graph of fake tensors of a device type that PyTorch was built without ends the process")
    seen = 0
    for case in layouts.cases(amp.device, amp.device.default_amp):
        found = layouts.differences(case, amp.device, form)
        if found is None:
            continue
        seen += 1
        amp.expect(f"what {case.op} makes of tensors that are {form}", found, [])
        if found and not amp.script:
            amp.script = of_layout(case, amp.device, form)
    if not seen:
        amp.unsupported(f"{amp.device.name} does not show what kernels receive")
