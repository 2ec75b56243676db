"""`ampcheck lint` reads programs without running them, and says where, what and what instead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from shutil import copy

import pytest

from ampcheck.cli import main
from ampcheck.errors import UsageError
from ampcheck.spec import policies
from ampcheck.tools.lint import RULES, find, lint_source
from ampcheck.tools.lint.torchscript.policies import _own, difference
from tests.cli_support import ROOT

_SCRIPTED = """\
import torch

@torch.jit.script
def f(x):
    with {region}:
        return x @ x
"""


def rules(text: str) -> list[str]:
    return [report.rule for report in lint_source(text, "p.py")]


@pytest.mark.parametrize(
    ("setup", "region"),
    [
        ("", 'torch.autocast("cpu", None, False)'),
        ("", 'torch.amp.autocast(device_type="cpu", enabled=False)'),
        ("", 'torch.amp.autocast_mode.autocast("cpu", enabled=False)'),
        ("from torch.cuda.amp import autocast as ac", "ac(False)"),
        ("from torch.cpu.amp import autocast", "autocast(enabled=False)"),
        ("import torch.cuda.amp as amp", "amp.autocast(False, torch.float16)"),
        ("from torch import autocast", 'autocast("cuda", enabled=False)'),
        ("cast = torch.autocast", 'cast("cpu", enabled=False)'),
        ("OFF = False", 'torch.autocast("cpu", enabled=OFF)'),
    ],
)
def test_every_spelling_of_a_region(setup: str, region: str) -> None:
    text = f"import torch\n{setup}\n" + _SCRIPTED.format(region=region)
    assert "disabled-in-script" in rules(text)


@pytest.mark.parametrize(
    "region", ['other.autocast("cpu", enabled=False)', "autocast(enabled=False)", "torch.no_grad()"]
)
def test_what_is_no_region(region: str) -> None:
    assert rules(_SCRIPTED.format(region=region)) == []


def test_a_name_of_the_file_hides_torch() -> None:
    own = "from torch.cuda.amp import autocast\ndef autocast(enabled):\n    return open('x')\n"
    assert rules(own + _SCRIPTED.format(region="autocast(enabled=False)")) == []


@pytest.mark.parametrize(
    "compiled",
    [
        "torch.jit.script(Net())",
        "torch.jit.script(Net().eval().cuda())",
        "torch.jit.trace(Net(), x)",
        "torch.fx.symbolic_trace(Net())",
        "torch.fx.Tracer().trace(Net())",
        "net = Net()\ntorch.jit.script(net)",
        "torch.jit.script(torch.nn.Sequential(torch.nn.ReLU(), Net()))",
        "def g(net: Net):\n    return torch.jit.script(net)",
    ],
)
def test_what_is_reached_from_a_module(compiled: str) -> None:
    text = f"""\
import torch

class Base(torch.nn.Module):
    def step(self, x):
        with torch.autocast("cpu", enabled=False):
            return x

class Part(Base):
    def forward(self, x):
        return self.step(x)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList([Part()])

    def forward(self, x):
        return self.parts[0](x)

{compiled}
"""
    assert [(report.line, report.column) for report in lint_source(text, "p.py")] == [(5, 14)]


def test_what_nobody_compiles_is_left_alone() -> None:
    assert rules(_SCRIPTED.format(region='torch.autocast("cpu", enabled=False)').replace("@torch.jit.script", "")) == []


def test_a_function_left_to_python_is_not_scripted() -> None:
    text = _SCRIPTED.format(region='torch.autocast("cpu", torch.bfloat16)').replace("x @ x", "g(x)")
    left = '\n@torch.jit.ignore\ndef g(x):\n    with torch.autocast("cpu", enabled=False):\n        return x\n'
    assert rules(text + left) == ["left-to-python"]


def test_tracing_in_a_region() -> None:
    text = 'import torch\nwith torch.autocast("cpu"{}):\n    torch.jit.trace(torch.nn.Linear(2, 2), x)\n'
    assert rules(text.format("")) == ["trace-under-autocast"]
    assert rules(text.format(", cache_enabled=False")) == []


def test_frozen_options() -> None:
    region = "with torch.autocast('cpu', torch.bfloat16, on):"
    text = f"import torch\ndef f(x, on):\n    {region}\n        return x\ntorch.jit.trace(f, x)"
    assert rules(text) == ["frozen"]


def test_an_object_inside_itself() -> None:
    text = _SCRIPTED.format(region='torch.autocast("cpu", torch.bfloat16) as r').replace("return", "with r: return")
    assert set(rules(text)) >= {"bound", "entered-twice"}


def test_comments_switch_rules_off_on_their_line() -> None:
    text = _SCRIPTED.format(region='torch.autocast("cpu", enabled=False)').splitlines()
    for comment, left in (("ignore", 0), ("ignore[disabled-in-script]", 0), ("ignore[bound]", 1)):
        lines = [*text[:4], f"{text[4]}  # ampcheck: {comment}", *text[5:]]
        assert len(rules("\n".join(lines))) == left
    quoted = "s = '# ampcheck: ignore[nothing]'\n"
    assert rules(quoted) == []


def test_a_comment_that_names_no_rule_is_refused() -> None:
    with pytest.raises(UsageError, match=r"p\.py:1: .*names no rule: 'bund'"):
        lint_source("x = 1  # ampcheck: ignore[bund]", "p.py")


@pytest.mark.parametrize("text", ["def f(:", "\0", "x = (", "  x"])
def test_what_is_no_python_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"p\.py:\d+ is no Python that can be read"):
        lint_source(text, "p.py")


def test_modules_are_found_without_importing_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lint_me"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "net.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert find("lint_me.net") == package / "net.py"
    assert find("lint_me") == package
    for unknown in ("lint_me.nothing", "nothing.at.all", "a b", "math"):
        with pytest.raises(UsageError, match="there is no file, folder or Python module"):
            find(unknown)


def test_linting_imports_no_torch(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text(_SCRIPTED.format(region='torch.autocast("cpu")'))
    code = f"""\
import sys
from ampcheck.cli.main import main
assert main(["lint", {str(file)!r}]) == 1
assert not {{"torch", "jax"}} & set(sys.modules)
import ampcheck
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "p.py"
    file.write_text(_SCRIPTED.format(region='torch.autocast("cpu", enabled=False)'))
    return file


def test_text(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["lint", str(program)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{program}:5:10: disabled-in-script: a scripted region is disabled. Eagerly PyTorch runs")
    assert out.endswith("\n1 report\n")


def test_json(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["lint", str(program), "--format", "json"]) == 1
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["line"], report["column"], report["rule"], report["compiler"]) == (
        5,
        10,
        "disabled-in-script",
        "script",
    )
    assert report["instead"]


def test_github(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["lint", str(program), "--format=github"]) == 1
    line = capsys.readouterr().out
    assert line.startswith("::error file=")
    assert ",line=5,col=10,title=ampcheck disabled-in-script::a scripted region is disabled" in line


@pytest.mark.parametrize(
    ("options", "code"),
    [(["--select", "bound"], 0), (["--ignore", "disabled-in-script"], 0), (["--select=disabled-in-script,bound"], 1)],
)
def test_select_and_ignore(program: Path, options: list[str], code: int) -> None:
    assert main.main(["lint", str(program), *options]) == code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a file, a folder or a module"),
        (["nothing.py"], "there is no file, folder or Python module 'nothing.py'"),
        (["--select", "bund", "."], "--select names no rule: 'bund'"),
        (["--ignore", "bund", "."], "--ignore names no rule: 'bund'"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["lint", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_bytes_that_are_no_text_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.py").write_bytes(b"x = '\xff\xfe'\n")
    assert main.main(["lint", str(tmp_path)]) == 2
    assert "p.py cannot be read" in capsys.readouterr().err


def test_the_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["lint", "--rules"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{name} (" in f"\n{out}" for name in RULES)


def test_policies_are_compared_with_the_device_type_s_own() -> None:
    assert "in float32 by TorchScript's" in difference("torch.exp", "cpu")
    assert difference("torch.exp", "cuda") == difference("torch.mm", "cpu") == difference("torch.exp", "mps") == ""
    assert difference("numpy.exp", "cpu") == ""


def test_policies_are_those_of_the_newest_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert difference("torch.cholesky", "cpu") == ""  # torch 2.14 took it off the CPU's list
    newest = (policies.TABLES / "policies.csv").read_text(encoding="utf-8")
    (tmp_path / "policies.csv").write_text(newest.replace("AutocastCUDA,exp,upcast", "AutocastCUDA,exp,downcast"))
    copy(policies.TABLES / "releases.csv", tmp_path)
    monkeypatch.setattr(policies, "TABLES", tmp_path)
    _own.cache_clear()
    assert "runs in the region's dtype by the cuda list" in difference("torch.exp", "cuda")
    _own.cache_clear()


def test_the_rules_are_documented() -> None:
    page = (ROOT / "docs" / "using.md").read_text(encoding="utf-8")
    assert [name for name in RULES if f"`{name}`" not in page] == []
