"""Bad input: modules that declare devices. One sentence on stderr and exit code 2, whatever is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.registry import known
from tests.cli_support import ROOT, refused, run, run_pytest


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "import no_such_package",
            "cannot be loaded as a device: ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("raise SystemExit(0)", "cannot be loaded as a device: SystemExit"),
        ("x = 1", "cannot be loaded as a device: AttributeError"),
        ("DEVICES = (1,)", "gives 1, which is no ampcheck.devices.Device"),
        (
            "from ampcheck.devices import Device\nclass D(Device):\n  pass\nDEVICES = (D(),)",
            "TypeError: Can't instantiate abstract class D",
        ),
        (
            "from ampcheck.devices.cpu import Cpu\nclass D(Cpu):\n  token = None\nDEVICES = (D(),)",
            "D does not set token",
        ),
        (
            "from ampcheck.devices.cpu import Cpu\nclass D(Cpu):\n  name = 'd'\nDEVICES = (D(),)",
            "the id token 'cpu' of 'd' cannot be told from 'cpu' of 'cpu'",
        ),
        (
            "from ampcheck.devices.cpu import Cpu\nclass D(Cpu):\n  token = 'd'\nDEVICES = (D(),)",
            "declares device 'cpu', which exists already",
        ),
        (
            "from ampcheck.devices.cpu import Cpu\nclass D(Cpu):\n  name, token = 'd', 'my-d'\nDEVICES = (D(),)",
            "has the id token 'my-d'; it is made of letters, digits, _ and .",
        ),
        (
            "from ampcheck.devices.cpu import Cpu\nclass D(Cpu):\n  name, token = 'd', 'fp16chip'\nDEVICES = (D(),)",
            "in which 'fp16' occurs",
        ),
        (
            "from ampcheck.devices.cpu import Cpu\nclass D(Cpu):\n  name = token = 'd'\n  amp_dtypes = ('fp8',)\n"
            "DEVICES = (D(),)",
            "has the lower precision 'fp8'; there are fp16, bf16",
        ),
        (
            "from ampcheck.devices.cpu import Cpu\nclass D(Cpu):\n  name = token = 'd'\n  amp_dtypes = ('fp16',)\n"
            "DEVICES = (D(),)",
            "has the default 'bf16', which is not among its amp_dtypes",
        ),
    ],
)
def test_a_bad_device_module(
    source: str,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    module = f"bad_device_{request.node.callspec.indices['source']}"
    (tmp_path / f"{module}.py").write_text(source + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = refused(capsys, "devices", f"--device-module={module}")
    assert module in found
    assert sentence in found


def test_a_good_device_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good_device.py").write_text(
        "from ampcheck.devices.cpu import Cpu\nclass D(Cpu):\n  name = token = 'myd'\nDEVICES = (D(),)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    device = known(("good_device",))["myd"]
    assert isinstance(device, Cpu)
    assert isinstance(device, Device)


def test_run_and_pytest_refuse_a_bad_module(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise RuntimeError('no driver')\n")
    for done in (
        run(tmp_path, "run", "--device-module=bad"),
        run_pytest(tmp_path, str(ROOT / "suites"), "--device-module=bad"),
    ):
        assert done.returncode == 2
        assert "bad cannot be loaded as a device: RuntimeError: no driver" in done.stderr
