"""`ampcheck lint` reads programs without running them, and says where, what and what instead."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ampcheck.cli import main
from ampcheck.errors import UsageError
from ampcheck.tools.lint import RULES, TRAINING, find, lint_source
from ampcheck.tools.lint.fix import fix_source
from tests.cli_support import PROGRAMS, ROOT, printed, python

OFF = 'torch.autocast("cpu", enabled=False)'
TABLE = tomllib.loads(Path(__file__).with_name("linted.toml").read_text(encoding="utf-8"))


def scripted(region: str, body: str = "return x @ x") -> str:
    return f"import torch\n\n@torch.jit.script\ndef f(x):\n    with {region}:\n        {body}\n"


def rules(text: str) -> list[str]:
    return [report.rule for report in lint_source(text, "p.py")]


@pytest.mark.parametrize(("setup", "region"), TABLE["regions"])
def test_every_spelling_of_a_region(setup: str, region: str) -> None:
    assert "disabled-in-script" in rules(f"import torch\n{setup}\n{scripted(region)}")


@pytest.mark.parametrize("program", TABLE["ruled"])
def test_rules(program: dict[str, Any]) -> None:
    assert rules(program["text"]) == program["rules"]


@pytest.mark.parametrize("compiled", TABLE["compiled"])
def test_what_is_reached_from_a_module(compiled: str) -> None:
    text = f"{TABLE['net']}{compiled}\n"
    assert [(report.line, report.column) for report in lint_source(text, "p.py")] == [(5, 14)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("x = 1  # ampcheck: ignore[bund]", r"p\.py:1: .*'bund'"),
        *((text, r"p\.py:\d+ is no Python that can be read") for text in ("def f(:", "\0", "x = (", "  x")),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        lint_source(text, "p.py")


def test_modules_are_found_without_importing_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lint_me"
    package.mkdir()
    for file in ("__init__.py", "net.py"):
        (package / file).write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert (find("lint_me.net"), find("lint_me")) == (package / "net.py", package)
    for unknown in ("lint_me.nothing", "nothing.at.all", "a b", "math"):
        with pytest.raises(UsageError, match="there is no file, folder or Python module"):
            find(unknown)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "p.py"
    file.write_text(scripted(OFF))
    return file


def test_linting_imports_no_torch(program: Path) -> None:
    python("-c", PROGRAMS["lint-no_torch"], program)


def test_formats(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def out(*options: str) -> str:
        return printed(capsys, "lint", str(program), *options, code=1)

    program = program.rename(program.with_name(f"{'long' * 25}.py"))
    assert out().startswith(f"{program}:5:10: disabled-in-script: ")  # on one line, however long the path is
    assert "\n1 report\nread 1 file, 1 region, 0 scalers; " in out()
    (report,) = json.loads(out("--format", "json"))
    assert (report["line"], report["column"], report["compiler"]) == (5, 10, "script")
    assert report["rule"] == "disabled-in-script"
    assert report["instead"]
    (run,) = json.loads(out("--format", "sarif"))["runs"]
    (result,) = run["results"]
    assert result["ruleId"] == "disabled-in-script"
    assert result["ruleId"] in {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 5, "startColumn": 10}
    assert out("--format=github").startswith("::error file=")
    assert ",line=5,col=10,title=ampcheck disabled-in-script::" in out("--format=github")


@pytest.mark.parametrize(("settings", "options", "code"), TABLE["settings"])
def test_settings(program: Path, settings: str, options: list[str], code: int) -> None:
    (program.parent / "pyproject.toml").write_text(f"[tool.ampcheck.lint]\n{settings}\n")
    assert main.main(["lint", str(program), *options]) == code
    assert main.main(["lint", str(program.parent), *options]) == code


def test_a_file_that_cannot_be_read_hides_no_other(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (program.parent / "a.py").write_text("print 'of Python 2'\n")
    (program.parent / "bytes.py").write_bytes(b"x = '\xff\xfe'\n")
    assert main.main(["lint", str(program.parent)]) == 2
    out, err = capsys.readouterr()
    assert "p.py:5:10: disabled-in-script" in out
    assert "a.py:1 is no Python that can be read" in err
    assert "bytes.py cannot be read" in err


def test_the_rules_are_listed_and_documented(capsys: pytest.CaptureFixture[str]) -> None:
    out, page = printed(capsys, "lint", "--rules"), (ROOT / "docs" / "using.md").read_text(encoding="utf-8")
    assert [name for name in RULES if f"\n{name} (" not in f"\n{out}" or f"`{name}`" not in page] == []


@pytest.mark.parametrize(("call", "device", "differs"), TABLE["policies"])
def test_policies_are_compared_with_the_newest_table(call: str, device: str, differs: bool) -> None:
    found = rules(scripted(f'torch.autocast("{device}")', f"return {call}"))
    assert ("policies-in-script" in found) == differs


# ---- mistakes in eager training code, and nothing in right programs


@pytest.mark.parametrize("program", TABLE["program"])
def test_a_program(program: dict[str, str]) -> None:
    found = {report.rule for report in lint_source(program["text"], "p.py", list(TRAINING))}
    assert found == {*program.get("rule", "").split()}, program["text"]


@pytest.mark.parametrize("pair", TABLE["fixed"])
def test_deprecated_names_are_rewritten(pair: dict[str, str]) -> None:
    assert fix_source(pair["old"]) == fix_source(pair["new"]) == pair["new"]


@pytest.mark.parametrize(
    "region", ["", "with torch.autocast('cpu'):\n    pass\n", "with torch.autocast(d):\n    pass\n"]
)
def test_a_question_that_may_mean_another_device_stays_and_is_reported(region: str) -> None:
    text = f"import torch\n{region}d = torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None\n"
    assert (fix_source(text), rules(text)) == (text, ["state-of-cuda"] * 2)


def test_line_ends_and_encodings_stay(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_bytes("# coding: latin-1\r\nimport torch\r\né = torch.cuda.amp.GradScaler()\r\n".encode("latin-1"))
    assert main.main(["lint", str(file), "--fix"]) == 0
    wanted = '# coding: latin-1\r\nimport torch\r\né = torch.amp.GradScaler("cuda")\r\n'
    assert file.read_bytes() == wanted.encode("latin-1")


def test_options_and_comments_take_ids_and_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.py"
    file.write_text("import torch\nwith torch.cuda.amp.autocast():\n    loss.backward()  # ampcheck: ignore[AMP005]\n")
    out = printed(capsys, "lint", str(file), code=1)
    assert out.startswith(f"{file}:2:6: AMP033 deprecated-amp: ")
    assert "\n1 report\nread 1 file, 1 region, 0 scalers;" in out
    assert main.main(["lint", str(file), "--select", "AMP005,AMP006"]) == 0
    assert main.main(["lint", str(file), "--ignore", "deprecated-amp"]) == 0
    assert main.main(["lint", str(file), "--fix"]) == 0
    assert 'with torch.amp.autocast("cuda"):' in file.read_text()
