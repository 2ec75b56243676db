"""The operators of rewritten programs: the library's and those in Python are the same ones."""

import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ampcheck import torchscript
from ampcheck.torchscript import library
from ampcheck.torchscript.regions import scripted
from tests.cli_support import ROOT
from tests.torchscript import programs

pytestmark = pytest.mark.filterwarnings(r"ignore:(?s).*torch\.jit\.:DeprecationWarning")

BUILT = library.variadic()
needs_library = pytest.mark.skipif(not BUILT, reason=torchscript.OPERATORS)

TENSOR = torch._C.TensorType.get()
OPTIONAL = torch._C.OptionalType(TENSOR)
LIST = torch._C.ListType(TENSOR)


def elsewhere(folder: Path, code: str, library: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python code where ampcheck has no library of operators, or an empty one of another name."""
    copied = folder / "ampcheck"
    shutil.copytree(ROOT / "ampcheck", copied, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    if library:
        (copied / "torchscript" / library).write_bytes(b"")
    path = f"import sys; sys.path.insert(0, {str(folder)!r}); sys.path.append({str(ROOT)!r})\n"
    run = subprocess.run([sys.executable, "-c", path + code], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run


def program(types: list[object], *values: object) -> list[object]:
    """Return the results of amp::autocast_promote for values of these types, on the CPU with autocast enabled."""
    graph = torch._C.Graph()
    leading = [graph.insertConstant("cpu"), graph.insertConstant(True)]
    inputs = [graph.addInput(f"x{place}") for place in range(len(types))]
    node = graph.create("amp::autocast_promote", [*leading, *inputs], len(types))
    for made, type_ in (*zip(inputs, types, strict=True), *zip(node.outputs(), types, strict=True)):
        made.setType(type_)
    graph.insertNode(node)
    for output in node.outputs():
        graph.registerOutput(output)
    graph.makeMultiOutputIntoTuple()
    out = torch._C._create_function_from_graph("program", graph)(*values)
    return list(out) if len(types) > 1 else [out]


def two_lists(x: Tensor, one: Tensor | None, other: Tensor | None, held: list[Tensor]) -> list[Tensor]:
    return list(torch.lstm(x, [x[:1], x[:1]], held, False, 1, 0.0, False, False, False))


def two_optionals(x: Tensor, one: Tensor | None, other: Tensor | None, held: list[Tensor]) -> list[Tensor]:
    return [torch.layer_norm(x, [2], one, other)]


def lists(x: Tensor, one: Tensor | None, other: Tensor | None, held: list[Tensor]) -> list[Tensor]:
    with torch.autocast("cpu"):
        return two_lists(x, one, other, held)


def optionals(x: Tensor, one: Tensor | None, other: Tensor | None, held: list[Tensor]) -> list[Tensor]:
    with torch.autocast("cpu"):
        return two_optionals(x, one, other, held)


@pytest.mark.parametrize("there", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    ("program", "plain", "op"), [(lists, two_lists, "lstm.input"), (optionals, two_optionals, "layer_norm")]
)
def test_any_mixture_is_saved(program: Any, plain: Any, op: str, wide: bool, there: tuple[int, ...]) -> None:
    """The ops that PyTorch promotes have fixed forms; these are made to need what only the variadic form takes."""
    rewritten = torchscript.autocast(scripted(program), device_type="cpu", tables={"cpu": {op: "promote"}})
    generator = torch.Generator().manual_seed(0)
    x, *biases = (torch.rand(shape, generator=generator).bfloat16() for shape in ([2, 2, 2], [2], [2]))
    held = [torch.rand(shape, generator=generator).bfloat16() for shape in ([8, 2], [8, 2])]
    given = [bias if place in there else None for place, bias in enumerate(biases)]
    if wide:
        held[1] = held[1].float()
        given = [bias if bias is None else bias.float() for bias in given]
    dtype = torch.float32 if wide and (there or program is lists) else torch.bfloat16
    want = plain(x.to(dtype), *given, [weight.to(dtype) for weight in held])
    for run in (rewritten, torch.jit.load(io.BytesIO(rewritten.save_to_buffer()))):
        got = run(x, *given, held)
        assert [out.dtype for out in got] == [dtype] * len(want)
        assert all(map(torch.equal, got, want))


@needs_library
def test_any_number_and_mixture_of_values() -> None:
    half, full, double = (torch.ones(1, dtype=d) for d in (torch.float16, torch.float32, torch.float64))
    whole = torch.ones(1, dtype=torch.int64)
    got = program([TENSOR, OPTIONAL, LIST, OPTIONAL, TENSOR], half, None, [half, full, whole], half, double)
    assert got[1] is None
    assert [t.dtype for t in (got[0], *got[2], got[3], got[4])] == [
        torch.float32, torch.float32, torch.float32, torch.int64, torch.float32, torch.float64,
    ]  # fmt: skip
    many = program([TENSOR] * 20, *[half] * 19, full)
    assert {t.dtype for t in many} == {torch.float32}


_LISTING = """
import torch, ampcheck.torchscript
print(*(s for s in map(str, torch._C._jit_get_all_schemas()) if s.startswith("amp::")), sep="\\n")
"""


@needs_library
def test_python_has_the_same_operators(tmp_path: Path) -> None:
    """All but the variadic forms, which PyTorch's dispatcher cannot have."""
    here = {text for text in map(str, torch._C._jit_get_all_schemas()) if text.startswith("amp::")}
    there = set(elsewhere(tmp_path, _LISTING).stdout.splitlines())
    assert {text for text in here if "(...)" not in text} == there


_AGREE = """
import warnings
warnings.simplefilter("ignore")
import ampcheck.torchscript as torchscript
from ampcheck.torchscript.regions import scripted
from tests.torchscript import programs
from tests.torchscript.test_modules import AMBIENT, around, given, same
print(torchscript.OPERATORS)
for program in programs.PROGRAMS:
    rewritten = torchscript.autocast(scripted(program))
    for dtype in AMBIENT.values():
        with around(dtype):
            for _ in range(3):
                same(rewritten(*given(), True), program(*given(), True))
print("agree")
"""


def test_programs_agree_without_a_library(tmp_path: Path) -> None:
    first, *_, last = elsewhere(tmp_path, _AGREE).stdout.splitlines()
    assert first.startswith("operators written in Python: no library was built")
    assert last == "agree"


def test_a_library_for_another_torch_is_not_loaded(tmp_path: Path) -> None:
    code = "import ampcheck.torchscript; print(ampcheck.torchscript.OPERATORS)"
    run = elsewhere(tmp_path, code, "_operators-torch2.0.0.so")
    assert f"the library was built for torch 2.0.0 and this is torch {torch.__version__}" in run.stdout
    assert "UserWarning: the library was built for torch 2.0.0" in run.stderr


def test_a_program_is_saved_for_other_installations(tmp_path: Path) -> None:
    """A program saved with the library runs where the operators are written in Python."""
    rewritten = torchscript.autocast(scripted(programs.one_region))
    (tmp_path / "program.pt").write_bytes(rewritten.save_to_buffer())
    code = """
import torch, ampcheck.torchscript
loaded = torch.jit.load("program.pt")
print([t.dtype for t in loaded(*(torch.ones(4, 4) for _ in range(3)), True)])
"""
    assert elsewhere(tmp_path, code).stdout == "[torch.bfloat16, torch.float32, torch.float32]\n"
