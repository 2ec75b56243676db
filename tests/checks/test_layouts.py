"""What the case of all ops in a form of tensor says where there is nothing to look at."""

from __future__ import annotations

import runpy

import pytest

from ampcheck.checks import layouts
from ampcheck.checks.scenario import DeviceAmp
from ampcheck.devices.registry import known
from ampcheck.errors import Unsupported
from tests.cli_support import ROOT

FILE = ROOT / "suites" / "eager" / "test_eligibility.py"


def test_a_device_that_shows_no_kernel_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    case = runpy.run_path(str(FILE))["test_any_form"]
    case(DeviceAmp(known()["cpu"], "bf16"), "leaf")
    monkeypatch.setattr(layouts, "differences", lambda case, device, form: None)
    with pytest.raises(Unsupported, match="cpu does not show what kernels receive"):
        case(DeviceAmp(known()["cpu"], "bf16"), "leaf")
