"""The pass for TorchScript on modules, frozen and traced programs, and what it refuses."""

import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampcheck import torchscript
from ampcheck.errors import UsageError
from ampcheck.torchscript.regions import scripted
from tests.processor import lstm_that_runs
from tests.torchscript import programs
from tests.torchscript.test_regions import AMBIENT, around, given, same


@pytest.fixture(autouse=True)
def _lstm_that_runs() -> Iterator[None]:
    with lstm_that_runs():
        yield


pytestmark = pytest.mark.filterwarnings(r"ignore:(?s).*torch\.jit\.:DeprecationWarning")


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
