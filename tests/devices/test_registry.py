"""Bad input: modules that declare devices. One sentence on stderr and exit code 2, whatever is wrong with them."""

import os
import sys
import warnings
from pathlib import Path

import pytest
import torch

from ampcheck.cli import main
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.registry import absent, known, promised, select, unusable, warned
from ampcheck.errors import UsageError
from ampcheck.observe.dispatcher import UNKNOWN
from ampcheck.spec.policies import closest, rows, table, versions
from tests.cli_support import ROOT, ended, refused, run, run_pytest

CPU = "from ampcheck.devices.cpu import Cpu\nclass D(Cpu):\n  name = token = 'mydev'\n"
"""The head of a device of a third party; what follows is its own."""


def device(**names: object) -> str:
    """The source of a module with the CPU under those attributes."""
    own = "".join(f"  {name} = {value!r}\n" for name, value in {"name": "d", "token": "d", **names}.items())
    return f"from ampcheck.devices.cpu import Cpu\nclass D(Cpu):\n{own}DEVICES = (D(),)"


UNFINISHED = "from ampcheck.devices import Device\nclass D(Device):\n  pass\nDEVICES = (D(),)"
WRONG_KEY = "has the key {!r}; the autocast dispatch key of device type {!r} is {!r}"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import no_such", "cannot be loaded as a device: ModuleNotFoundError: No module named 'no_such'"),
        ("raise SystemExit(0)", "cannot be loaded as a device: SystemExit"),
        ("DEVICES = (1,)", "gives 1, which is not an ampcheck.devices.Device"),
        (UNFINISHED, "TypeError: Can't instantiate abstract class D"),
        (device(token=None), "D does not set token"),
        (device(amp_dtypes=("fp8",)), "has the lower precision 'fp8'; there are fp16, bf16"),
        (device(token="cp"), "the id token 'cp' of 'd' cannot be told from 'cpu' of 'cpu'"),
        (device(name="cpu"), "declares device 'cpu', which exists already"),
        (device(token="my-d"), "has the id token 'my-d'; it is made of letters, digits, _ and ."),
        (device(token="fp16chip"), "in which 'fp16' occurs"),
        (device(amp_dtypes=("fp16",)), "has the default 'bf16', which is not among its amp_dtypes"),
        *(
            (device(type="mydevice", key=key), WRONG_KEY.format(key, "mydevice", "AutocastPrivateUse1"))
            for key in ("AutocastPrivateUse9", "AutocastCUDA")
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


# ---- what a device promises


class Promising(Cpu):
    name = token = "promising"

    def __init__(self, policies: object) -> None:
        self._policies = policies

    def policies(self) -> object:  # type: ignore[override]  # what a third party returns
        return self._policies


@pytest.mark.parametrize(
    ("policies", "sentence"),
    [
        ({"mm": "downcst"}, "promises the policy 'downcst' for 'mm'; there are downcast, upcast, .* 'downcast'?"),
        ({"bmmm": "downcast"}, r"promises a policy for 'bmmm', and torch .* has no such overload of aten; .* 'bmm'\?"),
        ({"aten::mm": "downcast"}, r"promises a policy for 'aten::mm', and torch .*; did you mean 'mm'\?"),
        ({"mm": "append"}, "promises the policy 'append' for 'mm'; there are overloads with a dtype for norm.Scalar, "),
        ({"xx": "upcast", "yy": "upcast", "mm": "upcast"}, r"promises a policy for 'xx'.* \(1 more promises"),
        (["mm"], r"policies\(\) returned a list; expected a mapping of overloads to policies"),
    ],
)
def test_a_promise_that_no_case_could_test(policies: object, sentence: str) -> None:
    with pytest.raises(UsageError, match=r"device 'promising': policies\(\) ") as raised:
        unusable(Promising(policies))
    assert raised.match(sentence)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "policies",
    [
        table("AutocastCUDA", closest(torch.__version__)),
        {row.overload: row.policy for version in versions() for row in rows(version)},
        {"mm": "downcast", "relu": "fallthrough", "special_bessel_j0": UNKNOWN, "norm.Scalar": "append"},
    ],
    ids=["cuda", "all_tables", "every_kind"],
)
def test_right_promises(policies: object) -> None:
    assert unusable(Promising(policies)) is None
    assert promised(Promising(policies)) == policies


# ---- methods that raise


RAISING = CPU + "  def {method}(self):\n    raise RuntimeError('the library\\nis too old')\nDEVICES = (D(),)\n"


@pytest.mark.parametrize("method", ["unavailable", "policies"])
def test_a_method_raises(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"raising_{method}"
    (tmp_path / f"{module}.py").write_text(RAISING.format(method=method))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sentence = f"device 'mydev': {method}() raised RuntimeError: the library is too old ({module}.py:5 in {method})"
    for names in (("mydev",), ()):
        with pytest.raises(UsageError) as raised:
            select(names, (module,))
        assert str(raised.value) == sentence
    assert (absent((module,))["mydev"], [device.name for device in select(("cpu",), (module,))]) == (sentence, ["cpu"])
    assert main.main(("devices", f"--device-module={module}")) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("mydev ")]
    assert sentence in row
    if method == "policies":
        assert refused(capsys, "explain", "mm", "--device=mydev", f"--device-module={module}") == sentence


def test_an_answer_that_is_no_sentence() -> None:
    class Odd(Cpu):
        def unavailable(self) -> object:  # type: ignore[override]  # what a third party returns
            return True

    with pytest.raises(UsageError, match=r"unavailable\(\) returned True; it returns a sentence, or None"):
        unusable(Odd())


@pytest.mark.nightly
def test_run_and_pytest_refuse_them(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(RAISING.format(method="policies"))
    options = ("--device=mydev", "--device-module=theirs")
    for start, first in ((run, "run"), (run_pytest, str(ROOT / "suites"))):
        done = start(tmp_path, first, *options, code=2)
        assert "device 'mydev': policies() raised RuntimeError: the library is too old (" in done.stderr
        assert "INTERNALERROR" not in done.stdout + done.stderr


# ---- warnings


WARNING = "import warnings\nPATTERN = '\\d'\nwarnings.warn('an old driver', FutureWarning)\n" + CPU


def test_a_warning_never_stops_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "warns_at_import.py").write_text(WARNING + "DEVICES = (D(),)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "mydev" in known(("warns_at_import",))
    said = [line for line in warned() if line.startswith("device module warns_at_import warned: ")]
    assert len(said) == 2, warned()
    assert any("invalid escape sequence" in line and "warns_at_import.py:2)" in line for line in said)
    assert any("FutureWarning: an old driver" in line and "warns_at_import.py:3)" in line for line in said)


def test_a_run_shows_the_warnings_of_an_import(tmp_path: Path) -> None:
    (tmp_path / "warning.py").write_text(WARNING + "  deviations = None\n  compilers = ()\nDEVICES = (D(),)\n")
    case = ("--device=mydev", "--device-module=warning", "--rule=downcast", "--op=mm", "--amp-dtype=fp16")
    done = run(tmp_path, "run", "--suite=eager", *case, code=0)
    assert "device module warning warned: FutureWarning: an old driver (" in done.stdout


# ---- PrivateUse1


@pytest.mark.nightly
def test_a_name_that_another_backend_took(tmp_path: Path) -> None:
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "backends")))
    modules = ("--device-module=partial", "--device-module=numpy_backend")
    done = ended([sys.executable, "-m", "ampcheck", "devices", *modules], tmp_path, PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ampcheck: device module numpy_backend cannot be loaded as a device: RuntimeError: ")
    assert done.stderr.endswith(
        "; PrivateUse1 is 'partial' in this process already, and a process has one such backend: load the backends in "
        "separate runs\n"
    )
