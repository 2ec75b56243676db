"""Every block of Python and every command of the pages is run, here or by the test or workflow that a table names."""

import itertools
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from ampcheck.cli.main import main
from tests.cli_support import ROOT, ended, python


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    language: str
    code: str


def blocks(language: str) -> list[Block]:
    """The blocks of a language in the README and the pages, those of lists included."""
    fence = re.compile(rf"^( *)```{language}\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs").glob("mistakes/*.md"))]
    return [
        Block(p.name, language, textwrap.dedent(found[2])) for p in pages for found in fence.finditer(p.read_text())
    ]


# ---- Python

ELSEWHERE = {
    "README.md: class MyDevice": "tests/docs/test_blocks.py::test_the_example_device_runs",
    "README.md: AdamW": "tests/docs/test_blocks.py::test_the_training_loop_on_jax_learns",
    "jax_device.md: import ampcheck.jax_device  #": "tests/jax/test_coverage.py::test_the_examples_of_the_guide_run",
    "jax_device.md: addcmul": "tests/jax/test_coverage.py::test_the_examples_of_the_guide_run",
    "jax_device.md: PartitionSpec": "tests/jax/test_coverage.py::test_the_examples_of_the_guide_run",
    "using.md: ampcheck.watch(": "tests/tools/test_watch.py::test_the_page_is_right",
    "using.md: @ampcheck.step": "tests/bench/test_advice.py::test_the_example_of_the_documentation_runs",
    "your_backend.md: # mydevice_ampcheck.py": "tests/packaging/test_wheel.py::test_every_command_of_the_page_works",
    "your_backend.md: # torch_mydevice.py": "tests/packaging/test_wheel.py::test_every_command_of_the_page_works",
    "your_backend.md: ^from ampcheck.register": "tests/backends/register/checks_register.py::check_blocks",
    "your_backend.md: ^register_autocast(": "tests/backends/register/checks_register.py::check_blocks",
    "your_backend.md: ^handle": "tests/backends/register/checks_register.py::check_blocks",
}
"""Blocks by their page and a part of their text, or its beginning, and the test that runs each."""
MODEL = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4))
x = example = y = torch.ones(2, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    with torch.autocast("cpu"):
        loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
"""
LIBRARIES = """
import sys, types
class Callback:
    pass
class Trainer:
    def __init__(self, *args, callbacks):
        assert [isinstance(one, Callback) for one in callbacks] == [True]
args = None
sys.modules["transformers"] = types.SimpleNamespace(TrainerCallback=Callback)
sys.modules["lightning.pytorch"] = types.SimpleNamespace(Callback=Callback)
lightning = types.SimpleNamespace(Trainer=Trainer)
"""
MESH = """
import torch, ampcheck.jax_device
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
    def forward(self, x):
        return self.down(self.up(x).relu())
model = Block().to("jax")
x = y = torch.ones(8, 8, device="jax")
def step(x, y):
    return (model(x) - y).square().mean()
"""
TPU = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu, the compiler for TPUs, is not installed")
HERE = {
    "nan.md: q @ q.T": ("", "assert scores.isfinite() and scaled.isfinite()", []),
    "bf16_or_fp16.md: enabled=dtype is": ("", "assert not scaler.is_enabled()", []),
    "benchmarks.md: estimate(catalogue(": ("", "assert found.seconds > 0", [TPU, pytest.mark.nightly]),
    'contributing.md: "addmm"': (
        "from ampcheck.samples.describe import *\n",
        "assert OPS['addmm']('addmm').overload == 'addmm'",
        [],
    ),
    "contributing.md: OpWorkload(": (
        "import torch\nfrom ampcheck.bench.core.model import *\nmade = ",
        "assert made.call is torch.mm",
        [],
    ),
    "jax_device.md: step.lower(": ("", "assert step.compiles == 1", [pytest.mark.nightly]),
    "jax_device.md: Bucket(sizes)": ("", "assert loss.compiles == 2", [pytest.mark.nightly]),
    "jax_device.md: shard(model, mesh, [": (MESH, "assert loss.item() > 0", [pytest.mark.nightly]),
    "questions.md: ampcheck.trace()": (MODEL, "assert trace.ops[0].dtype == 'bf16'", []),
    "questions.md: out = model(x)": (MODEL, "assert out.requires_grad", []),
    "questions.md: GradScaler": (MODEL, "assert not scaler.is_enabled()", []),
    "torchscript.md: torch.jit.script(model)": (MODEL, "assert torch.jit.load('model.pt')(x).shape == (2, 4)", []),
    "using.md: schema()": ("", "assert schema()['$defs']", []),
    "using.md: ampcheck.doctor()": (MODEL + LIBRARIES, "assert doctor.steps == 1", []),
    "using.md: ampcheck.trace()": (MODEL, "assert [one.name for one in t.ops][0] == 'linear'", []),
    "using.md: check_scripted(model, example)": (
        MODEL + "model = torch.nn.ReLU()\ntorch.jit.script(model).save('model.pt')\n",
        "assert not ampcheck.check_scripted(model, example)",
        [],
    ),
}
"""The others: what comes before each, what holds after it, and its marks."""


def test_every_block_of_python_is_run_once() -> None:
    wrong = []
    for block in blocks("python"):
        named = [key for key in (*ELSEWHERE, *HERE) if is_of(block, key)]
        wrong += [f"{block.page}: {block.code.splitlines()[:2]} is named by {named}"] if len(named) != 1 else []
    assert wrong == []
    for test in ELSEWHERE.values():
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), test


def is_of(block: Block, key: str) -> bool:
    page, _, part = key.partition(": ")
    there = block.code.startswith(part[1:]) if part.startswith("^") else part in block.code
    return block.page == page and there


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("key", [pytest.param(key, marks=marks) for key, (_, _, marks) in HERE.items()])
def test_block(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (block for block in blocks("python") if is_of(block, key))
    before, after, _ = HERE[key]
    code = f"{before}{block.code}\n{after}\n"
    if "jax_device" in block.page or before.endswith(LIBRARIES):
        eight = "--xla_force_host_platform_device_count=8"
        python("-c", code, folder=tmp_path, XLA_FLAGS=eight)
    else:
        monkeypatch.chdir(tmp_path)
        exec(compile(code, block.page, "exec"), {"__name__": "__main__"})


def test_the_example_device_runs(tmp_path: Path) -> None:
    """The class of the README, for the CPU in place of a device nobody has."""
    code = next(block.code for block in blocks("python") if is_of(block, "README.md: class MyDevice"))
    code = code.replace('name = token = type = "mydevice"', 'name = token = "mydevice"\n    type = "cpu"')
    code = code.replace("AutocastPrivateUse1", "AutocastCPU").replace("AutocastCUDA", "AutocastCPU")
    (tmp_path / "mydevice_ampcheck.py").write_text(code, encoding="utf-8")
    command = next(command for command in commands() if command.startswith("ampcheck") and "--device-module" in command)
    words = [*command.split(), "--op", "mm", "--reports", str(tmp_path)]
    assert "mydevice" in python("-m", *words, folder=tmp_path)


def test_the_training_loop_on_jax_learns() -> None:
    code = next(block.code for block in blocks("python") if is_of(block, "README.md: AdamW"))
    assert 0 < float(python("-c", code)) < 0.5  # an untrained model's is 8


# ---- commands

RUN_ELSEWHERE = {
    "make run": "nightly.yml: commands",
    "make test": "nightly.yml: commands",
    "ampcheck run": "nightly.yml: commands",
    "ampcheck run --device cpu --device virtual:cuda": "nightly.yml: commands",
    "ampcheck run --nightly": "nightly.yml: suites",
    "ampcheck run --shard 1/4": "nightly.yml: suites",
    "ampcheck bench": "nightly.yml: hardware",
    "ampcheck run --resume RUN.jsonl": "tests/runner/test_run.py::test_an_interrupted_run_is_resumed",
    "pytest bench": "nightly.yml: benchmarks",
    "pip install *": "nightly.yml: suites",
    "*npu*": "nightly.yml: virtual-npu",
    "* --device mydevice *": "tests/docs/test_blocks.py::test_the_example_device_runs",
}
"""Commands as patterns, and the job or test that runs each; tests/packaging runs those of your_backend.md."""
NEEDS = {
    "* --device tpu-v5e *": "libtpu, the compiler for TPUs",
    "* --device cuda-h100 *": "XLA's compiler for CUDA",
    "* --device cuda *": "a CUDA device",
}
CODES = {
    "ampcheck lint *model*": 1,
    "ampcheck lint src": 1,
    "ampcheck lint src --ignore *": 1,
    "ampcheck run --resume *": 1,
}
"""Commands that find something: a mistake in the files of `folder`, and a case that was red before."""
LONG = {
    "ampcheck power *": "--sample 2",
    "ampcheck run --device torchax*": "--op mm",
    "pytest suites *": "--op cat --no-run-file",
}
"""Commands that take longer than a test may, and the options by which they choose less."""
QUICK = ("ampcheck lint *", "ampcheck explain *", "ampcheck devices")


def matching(command: str, patterns: Iterable[str]) -> list[str]:
    return [pattern for pattern in patterns if fnmatchcase(command, pattern)]


def commands() -> list[str]:
    """The commands of the pages without comments, each once."""
    lines = [line for block in blocks("sh") if block.page != "your_backend.md" for line in block.code.splitlines()]
    lines += [line for block in blocks("sh") if "npu" in block.code for line in block.code.splitlines()]
    return list(dict.fromkeys(filter(None, (" ".join(shlex.split(line, comments=True)) for line in lines))))


def parameters() -> Iterator[object]:
    """The commands that no other test or workflow runs. Most start processes, so that they run each night."""
    for command in commands():
        if matching(command, RUN_ELSEWHERE):
            continue
        marks = [] if matching(command, QUICK) else [pytest.mark.nightly]
        marks += [pytest.mark.skip(f"it needs {NEEDS[pattern]}") for pattern in matching(command, NEEDS)]
        yield pytest.param(command, marks=marks, id=command)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands name: programs, and a package with a mistake."""
    made = tmp_path_factory.mktemp("pages")
    (step,) = (block.code for block in blocks("python") if "@ampcheck.step" in block.code)
    (made / "train.py").write_text(f"{step.replace('small', 'step')}\n{MODEL}\ntrain()\n")
    (made / "train_step.py").write_text(step)
    for package in ("src", "my_package"):
        (made / package).mkdir()
        (made / package / "__init__.py").touch()
    for file in ("model.py", "src/model.py", "my_package/model.py"):
        (made / file).write_text("import torch\n\nscaler = torch.cuda.amp.GradScaler()\n")
    return made


@pytest.fixture(scope="module")
def runs(folder: Path) -> None:
    """Run files: two of the same cases, and one of them with a red case."""
    start(folder, "ampcheck run --device cpu --op mm --run-file A.jsonl", 0)
    shutil.copy(folder / "A.jsonl", folder / "B.jsonl")
    red = (folder / "A.jsonl").read_text(encoding="utf-8").replace('"pass"', '"fail"', 1)
    (folder / "RUN.jsonl").write_text(red, encoding="utf-8")


def start(folder: Path, command: str, code: int) -> None:
    program, *words = command.split()
    done = ended([sys.executable, "-m", program, *words], folder)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("command", list(parameters()))
def test_command(command: str, folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if ".jsonl" in command:
        request.getfixturevalue("runs")
    if command.startswith("pytest suites"):
        tmp_path = ROOT  # whose conftest.py declares the options
    else:
        shutil.copytree(folder, tmp_path, symlinks=True, dirs_exist_ok=True)  # some change what they name
    less = "".join(f" {LONG[pattern]}" for pattern in matching(command, LONG))
    start(tmp_path, command + less, max([CODES[pattern] for pattern in matching(command, CODES)], default=0))


def test_commands_that_run_elsewhere_do() -> None:
    unused = [pattern for pattern in RUN_ELSEWHERE if not any(fnmatchcase(command, pattern) for command in commands())]
    assert unused == []
    for place in RUN_ELSEWHERE.values():
        file, _, name = place.replace("::", ": ").partition(": ")
        path = ROOT / (file if file.endswith(".py") else f".github/workflows/{file}")
        assert re.search(rf"^(  {name}:|def {name}\()", path.read_text(encoding="utf-8"), re.MULTILINE), place


def options_shown() -> dict[tuple[str, ...], set[str]]:
    """The options that any page gives each command."""
    out: dict[tuple[str, ...], set[str]] = {}
    for line in (line for block in blocks("sh") for line in block.code.splitlines()):
        program, *words = shlex.split(line, comments=True) or [""]
        if program == "ampcheck":
            actions = itertools.takewhile(lambda word: re.fullmatch(r"[a-z]+", word), words[:2])
            name = tuple(actions) if words[0] in ("bench", "deviations", "waivers") else (words[0],)
            out.setdefault(name, set()).update(word for word in words[1:] if re.match(r"--?\w", word))
    return out


@pytest.mark.parametrize("name", options_shown(), ids=" ".join)
def test_commands_take_what_the_pages_give_them(name: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*name, "--help"])
    known = set(re.findall(r"--?[\w-]+", capsys.readouterr().out))
    assert sorted(options_shown()[name] - known) == []
