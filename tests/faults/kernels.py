"""Autocast kernels that cast what they should not, or do not cast what they should.

The replacement does what a backend's C++ wrapper does (exclude the region's autocast key, change the arguments, run the
op), so the suite cannot tell it from a backend's own mistake.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch.library import get_kernel

from ampcheck.observe.dispatcher import replaced
from ampcheck.observe.recorder import map_tensors, overload, tensors
from tests.faults.mutant import CPU, CUDA, MPS, MTIA, XPU, Inject, Mutant, both, mutants

KEYS = {CPU: "AutocastCPU", CUDA: "AutocastCUDA", XPU: "AutocastXPU", MPS: "AutocastMPS", MTIA: "AutocastMTIA"}
FP32 = torch.float32
Tensor = torch.Tensor


@dataclass(frozen=True)
class Call:
    """One call of an op that entered its autocast kernel.

    `type`: the region's device type. `op`: the overload. `registered`: PyTorch's own autocast kernel, run on the call's
    arguments; for an op without a policy, the op as it is.
    """

    type: str
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    registered: Callable[[], Any]

    @property
    def low(self) -> torch.dtype:
        """The region's dtype."""
        return torch.get_autocast_dtype(self.type)

    @property
    def other(self) -> torch.dtype:
        """The lower precision that the region does not have."""
        return torch.float16 if self.low == torch.bfloat16 else torch.bfloat16

    def eligible(self, tensor: Tensor) -> bool:
        """Return whether autocast may cast the tensor."""
        return tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type == self.type

    def tensors(self) -> list[Tensor]:
        """The tensor arguments in order, lists flattened."""
        return list(tensors((self.args, self.kwargs)))

    def run(self, change: Callable[[int, Tensor], Tensor] = lambda place, tensor: tensor) -> Any:
        """Run the op outside of autocast, with each tensor replaced by `change(its place, it)`."""
        args, kwargs = numbered((self.args, self.kwargs), change)
        return self.op(*args, **kwargs)

    def cast(self, dtype: torch.dtype, unless: Callable[[int, Tensor], bool] = lambda place, t: False) -> Any:
        """Run the op with every eligible tensor cast to `dtype`, except those that `unless` picks out."""
        return self.run(lambda place, t: t.to(dtype) if self.eligible(t) and not unless(place, t) else t)


def numbered(value: Any, change: Callable[[int, Tensor], Tensor]) -> Any:
    """Return arguments or results with each tensor replaced by `change(its place, it)`."""
    places = count()
    return map_tensors(value, lambda tensor: change(next(places), tensor))


Body = Callable[[Call], Any]
Change = Callable[[Tensor], Tensor]
Choice = Callable[[Call], torch.dtype]


def kernel(name: str, body: Body) -> Inject:
    """Run `body` wherever the overload's autocast kernel would run, under the device's key."""

    def inject(device: str) -> AbstractContextManager[object]:
        key = KEYS.get(device, "AutocastPrivateUse1")
        key_set = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        op, type_ = overload(name), device.removeprefix("virtual:")
        has_policy = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
        original = get_kernel(f"aten::{name}", key).call_boxed if has_policy else lambda keyset, *a, **k: op(*a, **k)

        def wrong(keyset: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(key_set):
                return body(Call(type_, op, args, kwargs, partial(original, keyset, *args, **kwargs)))

        return replaced([(key, name, wrong)])

    return inject


def of_ops(tables: Mapping[str, Mapping[str, tuple[str, Body]]]) -> tuple[Mutant, ...]:
    """Return a mutant for each op and wrong kernel of some tables; of the cases of ops only the op's can notice it."""
    return tuple(
        replace(mutant, cases=f"{op}[+-]*")
        for key, table in tables.items()
        for name, (op, body) in table.items()
        for mutant in mutants({key: {name: kernel(op, body)}})
    )


# ---- casts of arguments


def low(call: Call) -> torch.dtype:
    return call.low


def wide(call: Call) -> torch.dtype:
    return FP32


def to(dtype: Choice, but: Callable[[Call, int, Tensor], bool] = lambda *_: False) -> Body:
    """Cast eligible tensors to a dtype, all `but` some."""
    return lambda call: call.cast(dtype(call), unless=lambda place, t: but(call, place, t))


def each(change: Callable[[Call, Tensor], Tensor]) -> Body:
    """Run on changed tensors."""
    return lambda call: call.run(lambda _, t: change(call, t))


def result(body: Body, change: Callable[[Call, Tensor], Tensor], place: int | None = None) -> Body:
    """Change the results of another kernel, or one of them."""

    def changed(call: Call) -> Any:
        out = body(call)
        last = len(out) - 1 if isinstance(out, (tuple, list)) else 0
        chosen = last if place == -1 else place
        return numbered(out, lambda n, t: change(call, t) if chosen in (None, n) else t)

    return changed


def last(call: Call, place: int, t: Tensor) -> bool:
    return place == len(call.tensors()) - 1


def strided(call: Call, place: int, t: Tensor) -> bool:
    return not t.is_contiguous()


def as_given(call: Call) -> Any:
    return call.run()


in_float32, in_low = to(wide), to(low)
always_bfloat16 = to(lambda call: torch.bfloat16)
low_but_last = to(low, last)
low_doubles_too = each(lambda call, t: t.to(call.low) if t.is_floating_point() else t)
low_by_way_of_other = each(lambda call, t: t.to(call.other).to(call.low) if call.eligible(t) else t)


def low_for_good(call: Call) -> Any:
    """Turn the caller's own tensors into the region's dtype, not copies of them."""
    for t in call.tensors():
        if call.eligible(t):
            t.data = t.data.to(call.low)
    return call.run()


def first_cast_twice(call: Call) -> Any:
    """Cast the first argument, and throw the cast away, before it is cast again."""
    for t in call.tensors()[:1]:
        if call.eligible(t) and t.dtype != FP32:
            t.float()
    return call.cast(FP32)


def promote(choose: Callable[[Call, list[torch.dtype]], torch.dtype], but: int | None = None) -> Body:
    """Cast to one of the eligible dtypes, or to another; the tensor in the place `but` neither counts nor is cast."""

    def body(call: Call) -> Any:
        found = [t.dtype for place, t in enumerate(call.tensors()) if call.eligible(t) and place != but]
        return call.cast(choose(call, found), unless=lambda place, t: place == but) if found else call.run()

    return body


def widest(call: Call, found: list[torch.dtype]) -> torch.dtype:
    return FP32 if FP32 in found else found[0]


def with_doubles(call: Call, found: list[torch.dtype]) -> torch.dtype:
    return torch.float64 if any(t.dtype == torch.float64 for t in call.tensors()) else widest(call, found)


# ---- dtypes filled in, overloads exchanged, refusals


def _with_dtype(call: Call, dtype: torch.dtype | None, over: bool = False) -> Any:
    """Run the op with a dtype where the caller gave none, or `over` the caller's."""
    place = [argument.name for argument in call.op._schema.arguments].index("dtype")
    args, kwargs = list(call.args), dict(call.kwargs)
    if place < len(args):
        args[place] = dtype if over or args[place] is None else args[place]
    else:
        kwargs["dtype"] = dtype if over or kwargs.get("dtype") is None else kwargs["dtype"]
    return call.op(*args, **kwargs)


def fills(dtype: Choice, when: Callable[[Call, Tensor], bool] = Call.eligible, over: bool = False) -> Body:
    """Fill in a dtype."""
    return lambda call: _with_dtype(call, dtype(call), over) if when(call, call.tensors()[0]) else call.run()


def appends(dtype: Callable[[Call, Tensor], torch.dtype], when: Callable[[Call, Tensor], bool] = Call.eligible) -> Body:
    """Run the overload with a dtype, but not with the promised one."""

    def body(call: Call) -> Any:
        given = call.tensors()[0]
        op = overload("norm.ScalarOpt_dtype" if len(call.args) < 3 else "norm.ScalarOpt_dim_dtype")
        return op(*call.args, **call.kwargs, dtype=dtype(call, given) if when(call, given) else given.dtype)

    return body


def refuses(error: Exception) -> Body:
    def body(call: Call) -> Any:
        raise error

    return body


# ---- which tensors are cast


def low_but(kind: Callable[[Tensor], bool]) -> Body:
    """Cast all eligible tensors but those of a kind."""
    return to(low, lambda call, place, t: kind(t))


def in_place_low(call: Call) -> Any:
    own = call.args[0]
    return own.copy_(call.op(own.to(call.low), *(t.to(call.low) for t in call.args[1:])))


def out_low(call: Call) -> Any:
    return call.kwargs["out"].copy_(torch.ops.aten.mm(*(t.to(call.low) for t in call.args)))


other_devices_too = each(lambda call, t: t.to(call.low) if t.dtype in (FP32, torch.float16, torch.bfloat16) else t)
complex_too = each(lambda call, t: t.real.to(call.low) if t.is_complex() or call.eligible(t) else t)
_LOSS = "binary_cross_entropy"
MUTANTS = (
    *of_ops(
        {
            "eager/downcast": {
                "mm-in-float32": ("mm", in_float32),
                "linear-bias-forgotten": ("linear", low_but_last),
                "addbmm-result-cast-back": ("addbmm", result(in_low, lambda call, t: t.to(call.tensors()[0].dtype))),
                "mm-changes-its-arguments": ("mm", low_for_good),
            },
            "eager/downcast virtual:cuda": {
                "einsum-as-given": ("einsum", as_given),
                "gru-cell-as-given": ("gru_cell", as_given),
                "fused-gru-cell-as-given": ("_thnn_fused_gru_cell", as_given),
            },
            "eager/upcast": {
                "mse-loss-in-low": ("mse_loss", in_low),
                "pinverse-result-rounded": (
                    "pinverse",
                    result(in_float32, lambda call, t: t.to(call.low).float() if t.dtype == FP32 else t),
                ),
                "polar-useless-cast": ("polar", first_cast_twice),
            },
            "eager/upcast virtual:cuda": {
                "layer-norm-as-given": ("layer_norm", as_given),
                "rms-norm-as-given": ("rms_norm", as_given),
            },
            "eager/promote": {"stack-as-given": ("stack", as_given)},
            "eager/promote virtual:cuda": {
                "grid-sampler-as-given": ("grid_sampler", as_given),
                "index-put-as-given": ("index_put", as_given),
            },
            "eager/promote virtual:xpu": {"cross-doubles-count": ("cross", promote(with_doubles))},
            "eager/promote virtual:mps": {"addcdiv-third-ignored": ("addcdiv", promote(widest, but=2))},
            "eager/optdtype virtual:cuda": {
                "softmax-overrides-the-caller": ("softmax.int", fills(wide, over=True)),
                "cumsum-fills-low": ("cumsum", fills(low)),
                "sum-fills-low": ("sum", fills(low)),
            },
            "eager/optdtype virtual:xpu": {
                "prod-fills-for-integers": ("prod", fills(wide, lambda call, t: t.dtype != torch.float64))
            },
            "eager/append virtual:cuda": {
                "norm-not-redirected": ("norm.Scalar", as_given),
                "norm-redirected-always-float32": (
                    "norm.ScalarOpt_dim",
                    appends(lambda call, t: FP32, lambda call, t: True),
                ),
            },
            "eager/append virtual:xpu": {"norm-redirected-to-low": ("norm.Scalar", appends(lambda call, t: call.low))},
            "eager/banned virtual:cuda": {
                "cross-entropy-runs": (_LOSS, as_given),
                "cross-entropy-refused-badly": (_LOSS, refuses(RuntimeError("this is not supported"))),
            },
            "eager/banned virtual:xpu": {
                "cross-entropy-type-error": (_LOSS, refuses(TypeError(f"{_LOSS} is unsafe; use {_LOSS}_with_logits")))
            },
            "eager/fallthrough virtual:cuda": {"cat-downcast-on-cuda": ("cat", in_low)},
            "eager/fallthrough virtual:xpu": {"stack-downcast-on-xpu": ("stack", in_low)},
            "eager/fallthrough virtual:mps": {"cross-entropy-policy-on-mps": (_LOSS, in_float32)},
            "eager/eligibility": {
                "mm-casts-doubles": ("mm", low_doubles_too),
                "mm-cast-twice-over": ("mm", low_by_way_of_other),
                "mm-saturates": (
                    "mm",
                    result(in_low, lambda _, t: t.clamp(torch.finfo(t.dtype).min, torch.finfo(t.dtype).max)),
                ),
                "mm-leaves-what-needs-grad": ("mm", low_but(lambda t: t.requires_grad)),
                "mm-leaves-strided": ("mm", to(low, strided)),
                "mm-leaves-subclasses": ("mm", low_but(lambda t: type(t) not in (Tensor, torch.nn.Parameter))),
                "mm-as-given": ("mm", as_given),
                "conv-loses-layout": (
                    "conv2d",
                    each(lambda c, t: t.to(c.low, memory_format=torch.contiguous_format) if c.eligible(t) else t),
                ),
                "view-copies": (
                    "view_as_complex",
                    each(lambda call, t: t.to(FP32, copy=True) if call.eligible(t) else t),
                ),
                "addmm-in-place-cast": ("addmm_", in_place_low),
                "mm-out-cast": ("mm.out", out_low),
                "mm-leaves-sparse": ("mm", low_but(lambda t: t.layout is torch.sparse_coo)),
                "relu-downcast": ("relu", in_low),
                "add-downcast": ("add.Tensor", in_low),
                "inverse-checks-nothing": ("linalg_inv_ex", lambda call: call.op(call.args[0].to(FP32))),
                "loss-in-the-default-dtype": ("mse_loss", to(lambda call: torch.get_default_dtype())),
            },
            "eager/eligibility virtual:cuda": {
                "mm-casts-other-devices": ("mm", other_devices_too),
                "host-numbers-are-cast": ("atan2", each(lambda call, t: t.to(FP32) if t.device.type == "cpu" else t)),
                "softmax-ignores-dtype": (
                    "softmax.int",
                    lambda call: call.op(*call.args, **{**call.kwargs, "dtype": FP32}),
                ),
            },
        }
    ),
    *mutants(
        {
            "eager/fallthrough": {"relu-downcast-on-cpu": kernel("relu", in_low)},
            "eager/eligibility": {"widening-ops-as-given": both(kernel("cat", as_given), kernel("stack", as_given))},
        }
    ),
)
