"""Bad input: one sentence on stderr, exit code 2, nothing lost; by `ampcheck` and by plain pytest."""

import subprocess
import sys
from pathlib import Path

import pytest

from ampcheck.devices.registry import known
from ampcheck.errors import UsageError
from ampcheck.runner import record as results
from ampcheck.runner.deviations import KnownDeviations, load
from tests.cli_support import ENTRY, ROOT, environment, pytest_here, refused, run, run_pytest, toml, write_suites

# ---- options, which pytest refuses in the child of `ampcheck run` too


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--device=nope", "there is no device named 'nope'; there are cpu, cuda, jax, emulated:cuda"),
        ("--op=mmm", "there is no op named 'mmm'; did you mean"),
        ("--rule=downcats", "there is no rule named 'downcats'; did you mean downcast"),
        ("--rule=x", "there is no rule named 'x'; there are downcast, upcast, "),
        ("--amp-dtype=fp8", "there is no region dtype named 'fp8'; there are fp16, bf16"),
        ("--compiler=x", "there is no compiler named 'x'; there are "),
        ("--executor=nope", "there is no compiler named 'nope'"),  # as --compiler was called
        ("--device-module=no_such_module", "no_such_module cannot be loaded as a device: ModuleNotFoundError:"),
        ("--deviations=no.toml", "the deviations file no.toml cannot be read: No such file or directory"),
        ("--manifest=no.txt", "the manifest no.txt cannot be read:"),
        ("--manifest=odd.txt", "'nonsense' is not a case; a case is written suite/rule/id"),
        ("--manifest=fields.txt", 'fields.txt, line 2: \'{"ops": "mm"}\' are no fields of a case'),
    ],
)
def test_an_option_is_refused(tmp_path: Path, option: str, sentence: str) -> None:
    (tmp_path / "odd.txt").write_text("nonsense\n")
    (tmp_path / "fields.txt").write_text('eager/downcast/mm-fp32-bf16-cpu\neager/downcast/a-bf16-cpu\t{"ops": "mm"}\n')
    code, said = pytest_here(tmp_path, str(ROOT / "suites"), option, f"--reports={tmp_path}")
    assert code == 2
    assert sentence in said
    assert "Traceback" not in said
    assert not list(tmp_path.rglob("*.jsonl"))


@pytest.mark.nightly
def test_a_malformed_selection_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = run(tmp_path, "run", "-k", "mm and (")
    assert done.returncode == 2
    assert "ampcheck: Wrong expression passed to '-k'" in done.stderr


def test_a_selection_without_cases_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "run", "--device=cpu", "--suite=scaler", "--rule=banned", "--shard=1/2")
    assert done.returncode == 2
    assert done.stderr == "ampcheck: no case was selected in shard 1/2\n"


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


FILES = {
    "a.cpp": Path(__file__).with_name("autocast.cpp").read_bytes(),
    "file": b"no folder",
    "notes": b"dear reader,\n",
    "odd.cpp": b"TORCH_LIBRARY_IMPL(aten, AutocastXPU, m) {\n  MY_KERNEL(mm)\n}\n",
    "picture": b"\x89PNG\xff",
    "broken_module.py": b"1 / 0\n",
    "some_program.py": b"""NUMBER = 3
def shout(word): print(word)
def step(): pass
if __name__ == "__main__":
    raise RuntimeError("it ran")
""",
}
REFUSED = {
    "bench advise some_program.py --device=abacus": "there is no device named 'abacus'",
    "bench advise some_program.py --device=virtual:cuda": "has no arithmetic, so that there is nothing to time",
    "bench advise some_program.py --compiler=trace": "there is no compiler 'trace'",
    "bench advise some_program.py --compiler=jit": "compiler 'jit' makes a program of a step on jax, not on 'cpu'",
    "bench advise some_program.py --threads=0": "--threads is 0",
    "bench advise some_program.py --json=nowhere/out.json": "the file nowhere/out.json cannot be written: No such file",
    "bench --quick --device=abacus": "there is no device named 'abacus'",
    "bench --quick --device=virtual:cuda": "has no arithmetic, so that there is nothing to time",
    "bench --quick --device=tpu-v99": "tpu-v99",
    "bench --quick --filter=mmm-64": "mmm-64",
    "bench --quick --compiler=trace": "there is no compiler 'trace'; there are eager, graph, compile, jit",
    "bench --quick --threads=0": "--threads is 0; at least one is needed",
    "compare notes picture": "line 1: not JSON",
    "compare picture notes": "is not a run file",
    "compare gone.jsonl notes": "cannot be read: No such file",
    "coverage --device abacus": "abacus",
    "coverage gone.jsonl": "gone.jsonl",
    "coverage --device virtual:mps --json gone/there.json": "gone/there.json",
    "coverage --try 1 --device virtual:mtia": "virtual:mtia",
    "deviations baseline no.jsonl": "the run file no.jsonl cannot be read",
    "deviations suggest .": "cannot be read: Is a directory",
    "doctor --every 0 some_program.py": "every is 0",
    "doctor --steps -1 some_program.py": "steps is -1",
    "doctor absent.py": "absent.py does not exist",
    "doctor --json nowhere/x.json some_program.py": "nowhere/x.json cannot be written",
    "doctor notes": "notes cannot be read as Python: line 1: invalid syntax",
    "doctor picture": "picture cannot be read as Python: line ",
    "entered --device abacus": "abacus",
    "explain sofmax": "there is no op named 'sofmax'; did you mean softmax",
    "explain torch.sofmax": "there is no op named 'torch.sofmax'; did you mean",
    "explain aten::nope_nope": "there is no op named 'aten::nope_nope'",
    f"explain {'x' * 99}": f"there is no op named '{'x' * 60}…'",
    "explain mm --device=nope": "there is no device named 'nope'; there are cpu",
    "explain mm --amp-dtype=fp32": "there is no region dtype named 'fp32'; there are fp16, bf16",
    "explain mm --inputs=fp33": "there is no dtype named 'fp33'; there are",
    "explain mm --inputs=,": "--inputs names no dtype",
    "explain mm --inputs=fp32,fp32,fp32": "aten::mm takes 2 floating tensors; --inputs names 3 dtypes",
    "lint": "name a file, a folder or a module",
    "lint nothing.py": "'nothing.py'",
    "lint --select bund .": "--select names no rule: 'bund'",
    "lint --ignore bund .": "--ignore names no rule: 'bund'",
    "lists cudda": "there is no autocast list named 'cudda'; did you mean cuda",
    "lists --policy=half": "there is no policy named 'half'; there are downcast, upcast, optdtype",
    "lists --torch=2.3": "there is no policy table for torch named '2.3'; there are 2.11",
    "lists --op=sofmax": "there is no op named 'sofmax'; did you mean",
    "lists gone.cpp": "the C++ source gone.cpp cannot be read: ",
    "lists a.cpp": "which list of a.cpp to compare is not clear; it has a.cpp:AutocastXPU, a.cpp:AutocastPrivateUse1",
    "lists odd.cpp": "odd.cpp registers by the macro MY_KERNEL, ",
    "power --sample 0": "--sample",
    "power --rule none": "none",
    "power --device abacus": "abacus",
    "report --reports=nowhere": "there is no run file in ",
    "run --device=cpu --baseline=no.txt": "the baseline no.txt cannot be read: No such file or directory",
    "run --device=cpu --baseline=picture": "is not valid TOML",
    "run --device=nope": "there is no device named 'nope'; there are cpu, ",  # as its child says
    "run --suite=nope": "there is no suite named 'nope'; there are ",
    "torchscript --device virtual:mps": "TorchScript has no autocast",
    "torchscript --device nothing": "nothing",
    "torchscript --op=mmm": "there is no op with a policy named 'mmm'; did you",
    "trace": "SCRIPT.py | MODULE:FUNCTION",
    "trace absent.py": "absent.py does not exist",
    "trace .": ". is a folder",
    "trace absent_module:f": "absent_module cannot be imported: ModuleNotFoundError",
    "trace broken_module:f": "broken_module cannot be imported: ZeroDivisionError",
    "trace some_program:": "some_program: names no function",
    "trace some_program:absent": "no function absent",
    "trace some_program:NUMBER": "NUMBER of module some_program is an int",
    "trace some_program:shout": "without arguments: missing a required argument: 'word'",
    "trace some_program:step 4": "'4' was given",
    "trace --sort size some_program.py": "invalid choice: 'size'",
    "trace --limit 0 some_program.py": "--limit must be 1 or more",
    "trace --json absent/out.json some_program.py": "absent/out.json cannot be written",
    "trace notes": "notes cannot be read as Python: line 1: invalid syntax",
    "trace picture": "picture cannot be read as Python: line ",
    "trace --against some_program.py some_program.py": "some_program.py is no file of ampcheck trace --json",
}


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
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, text in FILES.items():
        Path(name).write_bytes(text)
    assert REFUSED[command] in refused(capsys, *command.split())
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__", ".benchmarks"} == {*FILES}


# ---- files that are written


def test_an_existing_run_file_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("precious")
    sentence = f"the run file {path} cannot be written: it exists, and run files are never overwritten"
    assert refused(capsys, "run", f"--run-file={path}") == sentence
    assert path.read_text() == "precious"
    code, said = pytest_here(tmp_path, str(ROOT / "suites" / "eager"), "--device=cpu", "--op=mm", f"--run-file={path}")
    assert code == 2
    assert f"the run file {path} cannot be written: File exists" in said
    assert path.read_text() == "precious"


# ---- deviations

BASELINE = '[[deviation]]\nkind = "baseline"\ncases = ["eager/downcast/a"]\nstatus = "fail"\ndifferences = []\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[deviation", "is not valid TOML"),
        ("[[deviations]]\n", "expected [[deviation]] tables only, found deviations"),
        ('deviation = ["x"]\n', "deviation 1 is not a table"),
        (toml({**ENTRY, "reason": " "}), "deviation 'one' has no reason"),
        (toml({k: v for k, v in ENTRY.items() if k != "reason"}), "deviation 'one' has no reason"),
        (toml({**ENTRY, "colour": "red"}), "deviation 'one' has unknown fields: colour"),
        (toml({**ENTRY, "kind": "bug"}), "kind must be one of deviation, fault, unsupported, flaky, baseline; it is"),
        (toml({**ENTRY, "cases": []}), 'cases must be a list of globs of the form "rule/id"'),
        (toml({**ENTRY, "link": "somewhere"}), "link must be a URL or \"unreported\"; it is 'somewhere'"),
        (toml({**ENTRY, "raises": "("}), "raises is not a regular expression"),
        (toml(ENTRY) + "most = 3\n", "most must be a table of numbers from 0 on for named groups of raises"),
        (toml(ENTRY) + 'most = { off = "x" }\n', "most must be a table of numbers from 0 on"),
        (toml(ENTRY) + "most = { off = -1 }\n", "most must be a table of numbers from 0 on"),
        (toml(ENTRY) + "most = { off = 1 }\n", "most names 'off', and raises has no group (?P<off>...)"),
        (toml({**ENTRY, "torch": "new"}), "torch is not a version range: 'new'"),
        (toml({**ENTRY, "but": []}), 'but must be a list of globs of the form "rule/id"'),
        (toml({**ENTRY, "but": "x/y"}), 'but must be a list of globs of the form "rule/id"'),
        (toml({**ENTRY, "lacks": "mmm bf16"}), 'lacks must be an op and a dtype, as in "mkldnn_rnn_layer bf16"'),
        (toml({**ENTRY, "devices": "cpu"}), 'devices must be a list of names, as in ["cpu", "virtual:cuda"]'),
        (toml({**ENTRY, "devices": []}), 'devices must be a list of names, as in ["cpu", "virtual:cuda"]'),
        (toml({**ENTRY, "devices": ["cpu", "gpu"]}), "there is no device named 'gpu'; there are cpu, cuda, jax"),
        (toml({**ENTRY, "libraries": "jax"}), "libraries must be a table of version ranges"),
        (toml(ENTRY) + 'libraries = { pytest = "new" }\n', "libraries.pytest is not a version range: 'new'"),
        (toml(ENTRY) + "libraries = { pytest = 8 }\n", "libraries must be a table of version ranges"),
        (toml(ENTRY) + 'libraries = { pytset = ">8" }\n', "libraries names 'pytset', which is not installed and"),
        (toml(ENTRY, ENTRY), "deviation 'one' is in the file more than once"),
        (BASELINE + BASELINE, "eager/downcast/a occurs in the baseline more than once"),
        (BASELINE.replace('"fail"', '"pass"'), "status is 'pass'; it is one of fail, broken"),
        (BASELINE.replace("[]", '"x"'), "differences must be a list of texts"),
        (BASELINE + 'reason = "x"\n', "unknown fields for kind baseline: reason"),
        ("eager/downcast/a: pass\n", 'line 1: expected "suite/rule/id: STATUS", with a STATUS of fail, broken'),
        ("# fine\n  - a line of no case\n", "line 2: expected"),
        ("a: fail\n", "'a' is not a case; a case is written suite/rule/id"),
        ("eager/downcast/a: fail\neager/downcast/a: fail\n", "eager/downcast/a occurs in the baseline more than once"),
    ],
)
def test_a_malformed_deviations_file(text: str, sentence: str, tmp_path: Path) -> None:
    """The last ones are baselines, whose lists were plain until 0.2."""
    path = tmp_path / "deviations.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as refusal:
        load(path, tuple(known()), what="deviations file" if "[[" in text or "deviation" in text else "baseline")
    assert sentence in str(refusal.value)
    assert str(path) in str(refusal.value) or text.startswith("a: ")


def test_two_deviations_files_with_one_id_are_refused(tmp_path: Path) -> None:
    for name in ("a.toml", "b.toml"):
        (tmp_path / name).write_text(toml(ENTRY))
    with pytest.raises(UsageError, match=r"b\.toml: deviation 'one' is in \S+a\.toml already"):
        KnownDeviations([known()["cpu"]], [tmp_path / "a.toml", tmp_path / "b.toml"])


APPEND = """
from ampcheck.runner.suite import check, op_cases

@op_cases("append")
def test_append(case, device):
    check(case, device)
"""


@pytest.fixture
def rule_folder(tmp_path: Path) -> Path:
    """A suite with one small file, so that every case of the devices can be collected quickly."""
    write_suites(tmp_path, {"eager/test_append.py": APPEND})
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
    done = subprocess.run(["bash", "-c", limited], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2, done.stdout + done.stderr
    (file,) = (tmp_path / "reports" / "runs").iterdir()
    assert done.stderr.splitlines()[-1].endswith(f"{file.relative_to(tmp_path)} cannot be written: File too large")
    assert "Traceback" not in done.stderr
    assert len(results.read(file).results) > 3
