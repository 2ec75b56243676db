"""Bad input: one sentence on stderr, exit code 2, nothing lost; by `ampcheck` and by plain pytest."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ampcheck.devices.registry import known
from ampcheck.errors import UsageError
from ampcheck.runner import record as results
from ampcheck.runner.deviations import KnownDeviations, load
from tests.cli_support import ENTRY, PROGRAMS, ROOT, ended, pytest_here, refused, run, run_pytest, toml, write_suites

TABLE = tomllib.loads(Path(__file__).with_name("refused.toml").read_text(encoding="utf-8"))

# ---- options, which pytest refuses in the child of `ampcheck run` too


@pytest.mark.parametrize("option", TABLE["options"])
def test_an_option_is_refused(tmp_path: Path, option: str) -> None:
    (tmp_path / "odd.txt").write_text("nonsense\n")
    (tmp_path / "fields.txt").write_text('eager/downcast/mm-fp32-bf16-cpu\neager/downcast/a-bf16-cpu\t{"ops": "mm"}\n')
    code, said = pytest_here(tmp_path, str(ROOT / "suites"), option, f"--reports={tmp_path}")
    assert code == 2
    assert TABLE["options"][option] in said
    assert "Traceback" not in said
    assert not list(tmp_path.rglob("*.jsonl"))


@pytest.mark.nightly
def test_a_malformed_selection_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = run(tmp_path, "run", "-k", "mm and (", code=2)
    assert "ampcheck: Wrong expression passed to '-k'" in done.stderr


def test_a_selection_without_cases_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "run", "--device=cpu", "--suite=scaler", "--rule=banned", "--shard=1/2")
    assert (done.returncode, done.stderr) == (2, "ampcheck: no case was selected in shard 1/2\n")


@pytest.mark.parametrize("option", ["--timeout=0", "--timeout=soon", "-n0", "-nmany", "--max-red=0", "--max-red=some"])
def test_numbers(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        refused(capsys, "run", option)
    assert ended.value.code == 2
    assert "invalid" in capsys.readouterr().err


def test_an_absent_device_is_said_with_its_reason(tmp_path: Path) -> None:
    reason = known()["cuda"].unavailable()
    if reason is None:
        pytest.skip("this machine has CUDA")
    code, said = pytest_here(tmp_path, str(ROOT / "suites"), "--device=cuda")
    assert code == 2
    assert f"device 'cuda' cannot be used here: {reason}\n" in said


FILES = {name: text.encode() for name, text in TABLE["files"].items()} | {"picture": b"\x89PNG\xff"}
FILES["a.cpp"] = Path(__file__).with_name("autocast.cpp").read_bytes()
REFUSED = dict(TABLE["commands"])
WRITING = (
    *("coverage --json", "manifest --out", "deviations baseline run.jsonl --out", "power --json", "trace --json"),
    *("bench advise steps.py --trace", "doctor --json", "precision --svg", "run --junit", "run --run-file"),
    *("bench --run-file", "gpu --out"),
)
SHARD = "{!r} is not a shard; write NUMBER/COUNT with a number from 1 to COUNT, as in 2/8"
REFUSED |= {f"run --shard={n}": SHARD.format(n) for n in ("3/2", "0/2", "2", "1/0", "a/b", "1/2/3", "-1/2", "")}
REFUSED |= {f"{command} file/out.json": " cannot be written: Not a directory" for command in WRITING}


@pytest.mark.parametrize("command", REFUSED)
def test_bad_input_is_refused_in_a_sentence_before_all(
    command: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in FILES.items():
        Path(name).write_bytes(text)
    assert REFUSED[command] in refused(capsys, *command.split())
    assert {path.name for path in here.iterdir()} - {"__pycache__", ".benchmarks"} == {*FILES}


# ---- files that are written


def test_an_existing_run_file_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("precious")
    sentence = f"the run file {path} cannot be written: it exists, and run files are never overwritten"
    assert (refused(capsys, "run", f"--run-file={path}"), path.read_text()) == (sentence, "precious")
    code, said = pytest_here(tmp_path, str(ROOT / "suites" / "eager"), "--device=cpu", "--op=mm", f"--run-file={path}")
    assert code == 2
    assert f"the run file {path} cannot be written: File exists" in said
    assert path.read_text() == "precious"


# ---- deviations


@pytest.mark.parametrize("row", TABLE["deviations"])
def test_a_malformed_deviations_file(row: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "deviations.toml"
    text = row.get("text") or toml({**ENTRY, **row.get("entry", {})}) + row.get("more", "")
    path.write_text(text)
    with pytest.raises(UsageError) as refusal:
        load(path, tuple(known()), what="deviations file" if "[[" in text or "deviation" in text else "baseline")
    assert row["says"] in str(refusal.value)
    assert str(path) in str(refusal.value) or text.startswith("a: ")


def test_two_deviations_files_with_one_id_are_refused(tmp_path: Path) -> None:
    for name in ("a.toml", "b.toml"):
        (tmp_path / name).write_text(toml(ENTRY))
    with pytest.raises(UsageError, match=r"b\.toml: deviation 'one' is in \S+a\.toml already"):
        KnownDeviations([known()["cpu"]], [tmp_path / "a.toml", tmp_path / "b.toml"])


@pytest.fixture
def rule_folder(tmp_path: Path) -> Path:
    """A suite with one small file, so that every case of the devices can be collected quickly."""
    write_suites(tmp_path, {"eager/test_append.py": PROGRAMS["bad_input-append"]})
    (tmp_path / "mine.toml").write_text(toml({**ENTRY, "cases": ["append/nothing-*"]}))
    return tmp_path


@pytest.mark.parametrize("parallel", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["one", "xdist"])
def test_a_stale_deviation_is_red(rule_folder: Path, parallel: bool) -> None:
    options = ("--device=virtual:xpu", "--deviations=mine.toml", "--run-file=run.jsonl")
    if parallel:
        more = ("--import-mode=importlib", f"--rootdir={rule_folder}", "-p", "ampcheck.runner.plugin", "-n2")
        done = run_pytest(rule_folder, "suites", *options, *more)
        code, said = done.returncode, done.stdout
    else:
        code, said = pytest_here(rule_folder, "suites", *options)
    assert code == 1, said
    sentence = "mine.toml: deviation 'one': no case matches 'append/nothing-*'"
    assert f"stale: {sentence}" in said
    footer = results.read(rule_folder / "run.jsonl").footer
    assert footer is not None
    assert footer["stale"] == [sentence]


def test_a_selection_does_not_judge_deviations_stale(rule_folder: Path) -> None:
    options = ("--device=virtual:xpu", "--deviations=mine.toml", "--no-run-file")
    code, said = pytest_here(rule_folder, "suites/eager/test_append.py", *options)
    assert code == 0, said


def test_a_full_disk_ends_a_run_with_a_sentence_and_whole_files(tmp_path: Path) -> None:
    # The shell limits the size of a file, so writing fails as it does on a full disk.
    limited = f"ulimit -f 5; exec {sys.executable} -m ampcheck run --device cpu --op mm --suite eager -n1"
    done = ended(["bash", "-c", limited], tmp_path, code=2)
    (file,) = (tmp_path / "reports" / "runs").iterdir()
    assert done.stderr.splitlines()[-1].endswith(f"{file.relative_to(tmp_path)} cannot be written: File too large")
    assert "Traceback" not in done.stderr
    assert len(results.read(file).results) > 3
