"""The pass for TorchScript does what the same source does eagerly, and its operators are the same in C++ and Python."""

import io
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampcheck import torchscript
from ampcheck.devices.registry import select
from ampcheck.errors import UsageError
from ampcheck.observe.dispatcher import live_registrations
from ampcheck.torchscript import library
from ampcheck.torchscript.agreement import OURS, PYTORCH, WAYS, measure
from ampcheck.torchscript.regions import scripted
from tests.cli_support import PROGRAMS, ROOT, ended, printed
from tests.processor import lstm_that_runs  # noqa: F401  # a fixture
from tests.torchscript import programs

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:(?s).*torch\.jit\.:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:.*is_autocast_cpu_enabled:DeprecationWarning"),  # TorchScript has no other
]


class Recurrent(torch.nn.Module):
    """One layer used four times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(4):
                x = self.layer(x)
        return x


AMBIENT = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def given(requires_grad: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(4, 4, generator=generator).requires_grad_(requires_grad) for _ in range(3)]


def around(dtype: torch.dtype | None) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype, enabled=dtype is not None, cache_enabled=False)


def same(got: Any, want: Any) -> None:
    assert [t.dtype for t in got] == [t.dtype for t in want]
    for place, (g, w) in enumerate(zip(got, want, strict=True)):
        assert torch.equal(g, w), f"result {place} differs by {(g.double() - w.double()).abs().max()}"


@pytest.mark.parametrize("ambient", AMBIENT)
@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda program: program.__name__)
def test_as_eager(program: Callable[..., list[torch.Tensor]], ambient: str) -> None:
    """Also as it was saved and loaded."""
    rewritten = torchscript.autocast(scripted(program))
    loaded = torch.jit.load(io.BytesIO(rewritten.save_to_buffer()))
    with around(AMBIENT[ambient]):
        same(loaded(*given(), True), program(*given(), True))
        for on in (True, False):
            for _ in range(3):  # as it is compiled, profiled and optimized
                same(rewritten(*given(), on), program(*given(), on))


@pytest.mark.parametrize("ambient", AMBIENT)
@pytest.mark.parametrize("name", ["one_region", "nested", "flag", "several", "loops", "biases", "upcasts", "no_region"])
def test_gradients(name: str, ambient: str) -> None:
    """As in eager without its weight cache, which sums the gradients of a weight's uses in the lower precision."""
    program = getattr(programs, name)
    rewritten = torchscript.autocast(scripted(program))

    def gradients(call: Callable[..., list[torch.Tensor]]) -> list[torch.Tensor]:
        inputs = given(requires_grad=True)
        with around(AMBIENT[ambient]):
            out = call(*inputs, True)
        torch.stack([o.float().sum() for o in out if o.requires_grad]).sum().backward()
        return [i.grad for i in inputs if i.grad is not None]

    torch.set_autocast_cache_enabled(False)
    try:
        want = gradients(program)
        for _ in range(3):
            for g, w in zip(gradients(rewritten), want, strict=True):
                assert g.dtype == w.dtype
                torch.testing.assert_close(g, w, rtol=1e-6, atol=1e-6)
    finally:
        torch.set_autocast_cache_enabled(True)


def test_gradients_of_many_uses_are_summed_in_float32() -> None:
    """Nothing merges the casts of one weight, after which its gradients would be summed in the lower precision."""
    torch.manual_seed(0)
    module, x = Recurrent(), given()[0]
    rewritten = torchscript.autocast(scripted(module))

    def gradients(call: Any, *, cached: bool) -> list[torch.Tensor]:
        torch.set_autocast_cache_enabled(cached)
        try:
            return list(torch.autograd.grad(call(x).float().sum(), list(module.parameters())))
        finally:
            torch.set_autocast_cache_enabled(True)

    want, cached = gradients(module, cached=False), gradients(module, cached=True)
    assert not all(map(torch.equal, want, cached))
    for _ in range(3):
        same(gradients(rewritten, cached=True), want)


class Block(nn.Module):
    __constants__ = ("low",)  # PyTorch cannot freeze a region whose flag it does not know

    def __init__(self, low: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.low = low

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=self.low, dtype=torch.bfloat16):
            return self.linear(x.float()).relu()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(True), Block(False), Block(True)])
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.lstm = nn.LSTM(4, 4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("scale", torch.full((1,), 2.0))

    def helper(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.blocks[0].linear.weight)

    @torch.jit.export
    def other(self, x: Tensor, times: int = 2) -> Tensor:
        for _ in range(times):
            x = self.helper(x)
        return x

    def forward(self, x: Tensor, scale: float = 1.0) -> list[Tensor]:
        out = [x * self.scale * scale]
        for block in self.blocks:
            out.append(block(out[-1]))
        with torch.autocast("cpu", dtype=torch.float16):
            out.append(self.helper(out[-1]))
        out.append(self.norm(self.conv(x[None, None])))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out.append(self.norm(self.conv(x[None, None])))
            out.append(self.lstm(x[None])[0])
        out.append(self.drop(x))
        return out


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def frozen(module: Any) -> Any:
    return torch.jit.freeze(module)


MAKE: dict[str, Callable[[nn.Module], Any]] = {
    "scripted": lambda module: torchscript.autocast(scripted(module)),
    "frozen before": lambda module: torchscript.autocast(frozen(scripted(module))),
    "frozen after": lambda module: frozen(torchscript.autocast(scripted(module))),
    "optimized after": lambda net: torch.jit.optimize_for_inference(torchscript.autocast(scripted(net)), ["other"]),
    "saved": lambda module: torch.jit.load(io.BytesIO(torchscript.autocast(scripted(module)).save_to_buffer())),
}


@pytest.mark.parametrize(
    ("way", "ambient"),
    [
        # Every way in one ambient region, and every ambient region around programs made in one way, in each run.
        pytest.param(way, ambient, marks=[] if way == "scripted" or ambient == "bf16" else pytest.mark.nightly)
        for way in MAKE
        for ambient in AMBIENT
    ],
)
def test_modules(way: str, ambient: str) -> None:
    module = net()
    rewritten = MAKE[way](module)
    with torch.no_grad(), around(AMBIENT[ambient]):
        for _ in range(3):
            want = module(given()[0], scale=3.0)
            got = rewritten(given()[0], scale=3.0)
            if "frozen" in way or "optimized" in way:  # which folds normalizations and computes in other layouts
                assert [t.dtype for t in got] == [t.dtype for t in want]
                for g, w in zip(got, want, strict=True):
                    torch.testing.assert_close(g, w, rtol=2e-2, atol=2e-2)
            else:
                same(got, want)


def test_exported_methods_and_parts() -> None:
    module = net()
    original = scripted(module)
    rewritten = torchscript.autocast(original)
    with around(torch.bfloat16):
        same([rewritten.other(given()[0])], [module.other(given()[0])])
        same([getattr(rewritten.blocks, "1")(given()[0])], [module.blocks[1](given()[0])])
    assert "amp::" not in str(original.forward.graph)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        assert tensor.data_ptr() == rewritten.state_dict(keep_vars=True)[name].data_ptr(), name


def test_modules_train() -> None:
    """Parameters get the gradients of eager without its weight cache, and normalization keeps its statistics."""
    modules = [net().train(), net().train()]
    rewritten = torchscript.autocast(scripted(modules[0]))
    torch.set_autocast_cache_enabled(False)
    try:
        for _ in range(3):
            for call in (rewritten, modules[1]):
                torch.manual_seed(0)
                torch.stack([o.float().sum() for o in call(given()[0])]).sum().backward()
    finally:
        torch.set_autocast_cache_enabled(True)
    for (name, p), q in zip(modules[0].named_parameters(), modules[1].parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-3, msg=lambda text, n=name: f"{n}: {text}")
    same(modules[0].buffers(), modules[1].buffers())


@pytest.mark.parametrize("ambient", AMBIENT)
def test_traced(ambient: str) -> None:
    """A trace without autocast is a program like another one."""

    def function(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        c = torch.mm(a, b)
        return torch.cat([c, a.to(c.dtype)]), torch.linalg.inv(c + 4 * torch.eye(4))

    a, b, _ = given()
    rewritten = torchscript.autocast(torch.jit.trace(function, (a, b)))
    with around(AMBIENT[ambient]):
        for _ in range(3):
            same(rewritten(a, b)[1:], function(a, b)[1:])


def test_python_called_from_a_region() -> None:
    """Functions that TorchScript leaves to Python run in the region, too."""

    a, b, _ = given()
    rewritten = torchscript.autocast(scripted(programs.leaves_torchscript))
    for dtype in AMBIENT.values():
        with around(dtype):
            same(rewritten(a, b), programs.leaves_torchscript(a, b))


def test_other_spellings() -> None:
    def function(a: Tensor, b: Tensor) -> list[Tensor]:
        with torch.cpu.amp.autocast():
            c = torch.mm(a, b)
        with torch.cuda.amp.autocast():
            d = torch.mm(a, b)
        return [c, d]

    a, b, _ = given()
    rewritten = torchscript.autocast(scripted(function))
    assert [t.dtype for t in rewritten(a, b)] == [torch.bfloat16, torch.float32]


def test_defaults_and_names_are_kept() -> None:
    def function(a: Tensor, times: int = 2, name: str | None = None) -> Tensor:
        for _ in range(times):
            a = torch.mm(a, a)
        return a

    rewritten = torchscript.autocast(scripted(function))
    a = given()[0]
    same([rewritten(a), rewritten(a=a, times=1)], [function(a), function(a=a, times=1)])
    assert rewritten.name == "function"


def test_an_exception_leaves_no_state() -> None:
    def function(a: Tensor, b: Tensor, fail: bool) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            c = torch.einsum("ij,jk->ik", [a, b])
            if fail:
                raise ValueError("asked for")
        return c

    rewritten = torchscript.autocast(scripted(function))
    a, b, _ = given()
    for dtype in AMBIENT.values():
        with around(dtype):
            before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
            with pytest.raises(torch.jit.Error, match="asked for"):
                rewritten(a, b, True)
            with pytest.raises(RuntimeError, match="einsum"):  # in the op whose parts autocast acts on
                rewritten(a, b[:2], False)
            assert before == (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
            same([rewritten(a, b, False)], [function(a, b, False)])


def test_an_unsupported_dtype_disables_its_region() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float32):
            return torch.mm(a, b)

    a, b, _ = given()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert torchscript.autocast(scripted(function))(a.bfloat16(), b.bfloat16()).dtype == torch.bfloat16
    assert any("target dtype is not supported" in str(w.message) for w in seen)


def test_both_device_types() -> None:
    """Regions of both at once, seen with fake tensors of one and tensors of the other."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def function(a: Tensor, b: Tensor) -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.autocast("cuda", dtype=torch.float16):
                out = [
                    torch.mm(a, a),
                    torch.mm(b, b),
                    b.softmax(0),
                    torch.addcmul(b, b.half(), b),
                    b.norm(2),
                    a.norm(2),
                ]
            out += [torch.mm(a, a), torch.mm(b, b)]
        return out

    rewritten = torchscript.autocast(scripted(function))
    with FakeTensorMode():
        a, b = torch.rand(4, 4), torch.rand(4, 4, device="cuda")
        got = [t.dtype for t in rewritten(a, b)]
    low, half, wide = torch.bfloat16, torch.float16, torch.float32
    assert got == [low, half, wide, wide, wide, wide, low, wide]


def _on_xpu(a: Tensor) -> Tensor:
    with torch.autocast("xpu", dtype=torch.float16):
        return torch.mm(a, a)


class _Interfaced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = _Same()

    def forward(self, x: Tensor) -> Tensor:
        return self.part.forward(x)


class _Same(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def interfaced() -> Any:
    class Part(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            pass

    _Interfaced.__annotations__["part"] = torch.jit.interface(Part)
    return scripted(_Interfaced())


def prepared() -> Any:
    return torch.jit.optimize_for_inference(scripted(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()).eval()))


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "eager": (lambda: torchscript.autocast(len), "is no TorchScript program"),
    "module": (lambda: torchscript.autocast(nn.Linear(1, 1)), "Linear is no TorchScript program"),
    "device": (lambda: torchscript.autocast(scripted(programs.nested), device_type="mps"), "device_type is 'mps'"),
    "no device": (lambda: torchscript.autocast(scripted(programs.nested), device_type=()), "device_type is"),
    "other region": (lambda: torchscript.autocast(scripted(_on_xpu)), "a region on 'xpu'"),
    "left out": (lambda: torchscript.autocast(scripted(programs.nested), device_type="cuda"), "a region on 'cpu'"),
    "twice": (lambda: torchscript.autocast(torchscript.autocast(scripted(programs.nested))), "rewritten before"),
    "interface": (lambda: torchscript.autocast(interfaced()), "an interface"),
    "prepared": (lambda: torchscript.autocast(prepared()), "prepared for inference"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    call, says = REFUSED[what]
    with pytest.raises(UsageError, match=says):
        call()


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["cpu", "virtual:cuda"])
def test_every_overload_agrees(name: str) -> None:
    """Every dtype assignment of every overload, in each of the device's lower precisions."""
    device = select([name], [])[0]
    found = list(measure(device, {OURS: torchscript.autocast}))
    assert {one.overload: one.differences for one in found if not one.agrees(OURS)} == {}
    assert {one.overload for one in found} == live_registrations()[device.key]
    assert sum(one.cases for one in found) > 1500


A_FEW = ("linear", "conv2d", "mkldnn_rnn_layer", "avg_pool3d", "linalg_svd", "nll_loss", "cat", "stack", "index_copy")
"""Overloads of the CPU, of each policy: with lists, optional arguments, several outputs, one number for a list."""


@pytest.mark.parametrize("op", A_FEW)
def test_an_overload_agrees(op: str) -> None:
    (one,) = measure(select(["cpu"], [])[0], {OURS: torchscript.autocast}, op)
    assert one.differences == {}
    assert one.cases > 5


@pytest.mark.parametrize("op", ["mm", "conv_transpose2d.input", "cat"])
def test_what_pytorch_does_is_seen(op: str) -> None:
    """PyTorch's pass casts float32 alone, knows some ops only, and widens what it does not know."""
    (one,) = measure(select(["cpu"], [])[0], WAYS, op)
    assert one.agrees(OURS)
    assert not one.agrees(PYTORCH)
    assert one.agrees(PYTORCH, "fp32") == (op != "conv_transpose2d.input")


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("mm", ("downcast", "PyTorch, mm, inputs fp16, region of bf16: argument 0 of aten::mm")),
        ("relu", ("cpu: relu has no policy",)),
    ],
)
def test_the_command(op: str, said: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "torchscript", "--op", op, "--device", "cpu")
    assert [words for words in (torchscript.OPERATORS, *said) if words not in out] == []


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
    return ended([sys.executable, "-c", path + code], folder, code=0)


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


@needs_library
def test_python_has_the_same_operators(tmp_path: Path) -> None:
    """All but the variadic forms, which PyTorch's dispatcher cannot have."""
    here = {text for text in map(str, torch._C._jit_get_all_schemas()) if text.startswith("amp::")}
    there = set(elsewhere(tmp_path, PROGRAMS["modules-listing"]).stdout.splitlines())
    assert {text for text in here if "(...)" not in text} == there


def test_programs_agree_without_a_library(tmp_path: Path) -> None:
    first, *_, last = elsewhere(tmp_path, PROGRAMS["modules-agree"]).stdout.splitlines()
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
    found = elsewhere(tmp_path, PROGRAMS["modules-loaded"]).stdout
    assert found == "[torch.bfloat16, torch.float32, torch.float32]\n"
