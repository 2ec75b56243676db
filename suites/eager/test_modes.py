"""Rule modes: a `__torch_function__` sees a call as it is made, a `__torch_dispatch__` what autocast made of it.

The promise: a `__torch_function__`, of a mode or of a subclass, runs before the dispatcher, a `__torch_dispatch__`
after autograd and autocast, with the tensors that the kernel is to get
(https://docs.pytorch.org/docs/2.13/notes/extending.html, "Extending torch native API" and "Extending all torch API
with Modes"; the order of the keys in c10/core/DispatchKey.h). A subclass with a `__torch_dispatch__` has the dtype it
says it has, and autocast casts it by that dtype. While `__torch_dispatch__` runs, autocast does not act again; while
`__torch_function__` does, it does. `ampcheck.spec.casting` says what each op receives.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from ampcheck.runner.suite import Amp, Product, scenario, where
from ampcheck.spec.torch_dtypes import name_of

pytestmark = pytest.mark.rule("modes")

OPS: dict[str, tuple[str, Callable[..., torch.Tensor], tuple[str, ...]]] = {
    "product": ("mm", torch.mm, ("wide", "wide")),
    "product_of_low": ("mm", torch.mm, ("low", "wide")),
    "exponential": ("exp", torch.exp, ("low",)),
    "loss": ("mse_loss", torch.nn.functional.mse_loss, ("low", "wide")),
    "angle": ("atan2", torch.atan2, ("low", "wide")),
    "joined": ("cat", lambda *tensors: torch.cat(tensors), ("low", "wide")),
    "sums": ("cumsum", lambda x: torch.cumsum(x, 0), ("low",)),
    "sine": ("sin", torch.sin, ("low",)),
    "scaled": ("mul.Tensor", torch.mul, ("low", "wide")),
}
"""An overload of each policy on one device or other, and two without one: the call and the dtypes it is given."""


def _names(dtypes: Iterable[torch.dtype]) -> tuple[str, ...]:
    return tuple(map(name_of, dtypes))


class Log:
    """Notes the dtypes of each call and how many casts there are, and what a product gives inside."""

    def __init__(self, amp: Amp) -> None:
        self.calls: list[tuple[str, tuple[str, ...], str, torch.dtype]] = []
        self.casts = 0
        self.a, self.b = amp.rand(2, 2), amp.rand(2, 2)

    def note(self, func: Any, args: Any, kwargs: Any) -> None:
        dtypes = tuple(name_of(leaf.dtype) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype):
            self.casts += 1
        elif dtypes:
            asked = (kwargs or {}).get("dtype")
            name = str(func).removeprefix("aten.").removesuffix(".default")
            self.calls.append((name, dtypes, name_of(asked) if asked else "", torch.mm(self.a, self.b).dtype))

    def seen(self, overload: str) -> list[tuple[object, ...]]:
        """Return the dtypes, the dtype= and the product inside of the first call of an overload; of any for ""."""
        return [call[1:] for call in self.calls if overload in ("", call[0])][:1]


class _Noting:
    """A mode that notes each call, and makes it."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def call(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.log.note(func, args, kwargs)
        return func(*args, **(kwargs or {}))


class FunctionMode(_Noting, TorchFunctionMode):
    """Sees what Python calls."""

    __torch_function__ = _Noting.call


class DispatchMode(_Noting, TorchDispatchMode):
    """Sees what kernels are called with."""

    __torch_dispatch__ = _Noting.call


class Subclass(torch.Tensor):
    """A tensor that sees what Python calls with it."""

    log: Log

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        own = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Subclass))
        with torch._C.DisableTorchFunctionSubclass():
            if hasattr(own, "log") and getattr(func, "__name__", "") not in ("__get__", "__set__"):
                own.log.note(func, args, kwargs)
            return func(*args, **(kwargs or {}))


class Wrapper(torch.Tensor):
    """A tensor that holds another one, and sees what kernels are called with."""

    log: Log
    held: torch.Tensor
    gives_its_own = True

    @staticmethod
    def __new__(cls, held: torch.Tensor, log: Log, dtype: torch.dtype) -> Wrapper:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=dtype, device=held.device)
        made.held, made.log = held, log
        return made

    def value(self) -> torch.Tensor:
        return self.held

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        log = next(leaf.log for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Wrapper))
        log.note(func, args, kwargs)
        plain = tree_map(lambda leaf: leaf.value() if isinstance(leaf, Wrapper) else leaf, (args, kwargs or {}))
        out = func(*plain[0], **plain[1])
        return cls(out, log, out.dtype) if cls.gives_its_own else out


class Quantized(Wrapper):
    """A tensor that holds eighths as integers, and gives them in the dtype it says it has."""

    gives_its_own = False

    def value(self) -> torch.Tensor:
        return (self.held.to(torch.float32) / 8).to(self.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            args[0].log.note(func, args, kwargs)
            return cls(args[0].held, args[0].log, kwargs["dtype"])
        return super().__torch_dispatch__(func, types, args, kwargs)


def _subclassed(x: torch.Tensor, log: Log) -> torch.Tensor:
    made = x.as_subclass(Subclass)
    made.log = log
    return made


USERS: dict[str, tuple[Callable[..., AbstractContextManager[object]], Callable[..., torch.Tensor]]] = {
    "function_mode": (FunctionMode, lambda x, log: x),
    "dispatch_mode": (DispatchMode, lambda x, log: x),
    "subclass": (nullcontext, _subclassed),
    "wrapper": (nullcontext, lambda x, log: Wrapper(x, log, x.dtype)),
    "quantized": (nullcontext, lambda x, log: Quantized((x * 8).to(torch.int32), log, x.dtype)),
}
"""Who looks at a call: the mode that is entered, and what is made of each tensor."""
FUNCTIONS = ("function_mode", "subclass")

USED = Product(
    {"user": tuple(USERS), "made": ("before", "inside"), "op": tuple(OPS), "region": ("on", "off")},
    {"mm refuses tensors of two dtypes where nothing casts them": where(op="product_of_low", region="off")},
)


@scenario(USED, dtypes="default")
def test_used(amp: Amp, user: str, made: str, op: str, region: str) -> None:
    """What looks at a call sees it above or below autocast, and the result has the dtype it has without (extending)."""
    if user == "subclass" and not amp.has_values:
        amp.unsupported("a fake tensor is of its own class and takes no other")
    enter, wrap = USERS[user]
    overload, call, dtypes = OPS[op]
    log, plain = Log(amp), [amp.rand(2, 2).to(amp.dtype if dtype == "low" else torch.float32) for dtype in dtypes]
    given = [x.dtype for x in plain]
    casting = amp.casting(overload, given, enabled=region == "on")
    entering = amp.region(enabled=region == "on", cache_enabled=False)
    before = amp.state(), amp.depth()
    with ExitStack() as stack:
        if made == "inside":
            stack.enter_context(entering)
        tensors = [wrap(x, log) for x in plain]
        stack.enter_context(enter(log))
        if made == "before":
            stack.enter_context(entering)
        got = call(*tensors)
    with entering:
        want = call(*plain)
    amp.assert_equal("state and depth afterwards", (amp.state(), amp.depth()), before)
    if user in FUNCTIONS:
        overload, casts = "", 0
        wanted = (_names(given), "", amp.dtype if region == "on" else torch.float32)
    else:
        casts = sum(one != other for one, other in zip(given, casting.dtypes, strict=True))
        wanted = (_names(casting.dtypes), name_of(casting.dtype) if casting.dtype else "", torch.float32)
    amp.assert_equal("dtypes it sees, dtype=, and dtype of a product inside", log.seen(overload), [wanted])
    amp.assert_equal("how many casts it sees", log.casts, casts)
    amp.assert_equal("dtype of the result", got.dtype, want.dtype)


# ---- PyTorch's own modes, and what else a thread may have switched on
@contextmanager
def _calm() -> Iterator[None]:
    """Turn autograd's detection of anomalies on, without the warning that it is on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly(check_nan=False):
            yield


SWITCHED: dict[str, Callable[[Amp], AbstractContextManager[object]]] = {
    "nothing": lambda amp: nullcontext(),
    "no_grad": lambda amp: torch.no_grad(),
    "inference": lambda amp: torch.inference_mode(),
    "flops": lambda amp: FlopCounterMode(display=False),
    "profiler": lambda amp: torch.autograd.profiler.profile(),
    "own_device": lambda amp: torch.device(amp.type),
    "fake": lambda amp: FakeTensorMode(allow_non_fake_inputs=True),
    "anomaly": lambda amp: _calm(),
    "saved_hooks": lambda amp: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
    "forward_ad": lambda amp: torch.autograd.forward_ad.dual_level(),
}
OF_EACH_POLICY: dict[str, tuple[str, Callable[..., torch.Tensor], tuple[str, ...]]] = {
    "layer": ("linear", torch.nn.functional.linear, ("wide", "wide", "wide")),
    "product": ("mm", torch.mm, ("wide", "low")),
    "loss": ("mse_loss", torch.nn.functional.mse_loss, ("low", "wide")),
    "exponential": ("exp", torch.exp, ("low",)),
    "softmax": ("softmax.int", lambda x: torch.softmax(x, -1), ("low",)),
    "norm": ("norm.Scalar", lambda x: torch.ops.aten.norm.Scalar(x, 2), ("low",)),
    "multiplied": ("addcmul", torch.addcmul, ("low", "low", "wide")),
    "copied": ("index_copy", lambda x, y: x.index_copy(0, x.new_tensor([0, 1]).long(), y[:2]), ("low", "wide")),
    "refused": ("binary_cross_entropy", torch.nn.functional.binary_cross_entropy, ("wide", "wide")),
    "sine": ("sin", torch.sin, ("low",)),
}
"""An overload of each policy on one device or other: the call, and the dtypes it is given."""
SIDES = {"small": 3, "large": 70}
"""The side of each matrix. The small ones are leaves that require grad; large ones are more than a kernel's vector."""

AMBIENT = Product({"switched": tuple(SWITCHED), "op": tuple(OF_EACH_POLICY), "size": tuple(SIDES)})


@scenario(AMBIENT, dtypes="default")
def test_switched_on(amp: Amp, switched: str, op: str, size: str) -> None:
    """A call in a region is cast alike whatever else the thread has switched on (amp.html#autocast-op-reference)."""
    overload, call, dtypes = OF_EACH_POLICY[op]
    if switched == "fake" and not amp.has_values:
        amp.unsupported("its tensors are fake without a further mode")
    # A graph of fake tensors of a device type that PyTorch was built without would end the process.
    leaves = size == "small" and amp.has_values
    side = SIDES[size]
    given = [amp.rand(side, side).to(amp.dtype if dtype == "low" else torch.float32) for dtype in dtypes]
    given = [x[0].clone() if op == "layer" and place == 2 else x for place, x in enumerate(given)]
    given = [x.detach().requires_grad_(leaves) for x in given]
    casting = amp.casting(overload, [x.dtype for x in given])
    cast = [x.to(casting.dtype or dtype) for x, dtype in zip(given, casting.dtypes, strict=True)]
    with SWITCHED[switched](amp):
        want = amp.outcome(call, *cast, whole=True)
        with amp.region():
            around = amp.outcome(call, *given, whole=True)
    with amp.region(), SWITCHED[switched](amp):
        inside = amp.outcome(call, *given, whole=True)
    for place, got in (("around the region", around), ("inside", inside)):
        _assert_result(amp, f"{overload}, switched on {place}", got, want, casting.refusal)
    amp.assert_equal("state and depth afterwards", (amp.state(), amp.depth()), ((False, amp.default, True), 0))


def _assert_result(amp: Amp, what: str, got: torch.Tensor | str, want: torch.Tensor | str, refusal: str) -> None:
    """Note where what a call gives or raises in a region differs from what it does with explicit casts."""
    if refusal:
        amp.assert_equal(f"whether the error of {what}, says {refusal}", refusal in str(got), True)
    elif isinstance(want, str) or isinstance(got, str):
        amp.assert_equal(f"what {what}, raises", *(x if isinstance(x, str) else "" for x in (got, want)))
    else:
        amp.assert_equal(f"dtype of the result of {what}", got.dtype, want.dtype)
        # A fake tensor has no values.
        if amp.has_values and type(got) is torch.Tensor and got.dtype == want.dtype:
            amp.assert_identical(f"result of {what}", got, want)
