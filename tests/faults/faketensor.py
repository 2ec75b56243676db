"""Kernels and backends that do with tensors without values, in a region, something else than with real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.faults.fault import Fault, Inject
from tests.faults.kernels import Body, Call, kernel

Test = Callable[[torch.Tensor], bool]


def _fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def _real(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor


def _traced(tensor: torch.Tensor) -> bool:
    """Return whether AOTAutograd traces a call of it."""
    return isinstance(tensor, FunctionalTensor)


def of(op: str, test: Test, wrong: Body) -> Callable[[], AbstractContextManager[object]]:
    """Return what makes the autocast kernel of an op wrong for some tensors."""
    return lambda: kernel("cpu", op, lambda call: (wrong if any(map(test, call.tensors())) else registered)(call))


def registered(call: Call) -> Any:
    return call.registered()


def in_low(call: Call) -> Any:
    return call.cast(call.low)


def uncast(call: Call) -> Any:
    return call.run()


def detached(call: Call) -> Any:
    return call.registered().detach()


def first_detached(call: Call) -> Any:
    """No gradient reaches the first argument."""
    return call.run(lambda place, t: t if place else t.detach())


def padded(call: Call) -> Any:
    """The result is a part of a larger one."""
    out = call.registered()
    return torch.cat([out, out], -1)[..., : out.shape[-1]] if out.dim() else out


def doubled(call: Call) -> Any:
    return call.registered() * 2


def refused(call: Call) -> Any:
    raise RuntimeError("real tensors are refused")


class _Refused(torch.autograd.Function):
    """A tensor as it is, which refuses a backward pass outside of a region."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        if not torch.is_autocast_enabled("cpu"):
            raise RuntimeError("expected the same dtype")
        return grads[0]


def refused_backward(call: Call) -> Any:
    return _Refused.apply(call.registered())


class _Cast(TorchFunctionMode):
    """Casts meta tensors in a region of the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        metas = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.is_meta]
        if metas and torch.is_autocast_enabled("cpu"):
            with torch._C.DisableTorchFunction():
                low = torch.get_autocast_dtype("cpu")
                args = tree_map(lambda x: x.to(low) if any(x is meta for meta in metas) else x, args)
        return func(*args, **(kwargs or {}))


@contextmanager
def metas_cast() -> Iterator[None]:
    """Cast meta tensors in a region of the CPU."""
    with _Cast():
        yield


def fault(name: str, inject: Inject, says: str, only: str) -> Fault:
    """A fault that the cells whose ids hold `only` catch."""
    return Fault(name, "faketensor", inject, (says,), "jit", only=only)


_FAKE = "call- and wide and -fake and"
_REAL = "call- and wide and -real and"
FAULTS = (
    fault("fake-in-low", of("cat", _fake, in_low), "dtypes of the results", f"{_FAKE} -forward"),
    fault("fake-result-detached", of("cat", _fake, detached), "which results require grad", f"{_FAKE} -outside"),
    fault("fake-gradient-lost", of("cat", _fake, first_detached), "dtypes of the gradients", f"{_FAKE} -outside"),
    fault("fake-result-padded", of("cat", _fake, padded), "strides of the results", f"{_FAKE} -forward"),
    fault("real-refused-in-region", of("cat", _real, refused), "what it raises", f"{_REAL} -forward"),
    fault("real-backward-refused", of("stack", _real, refused_backward), "what it raises", f"{_REAL} -outside"),
    fault("meta-is-cast", metas_cast, "dtypes of the results", "call- and wide and -meta and -forward"),
    fault("compiled-loses-casts", of("mm", _traced, uncast), "dtypes of the results", "compiled-tensordot-aot"),
    fault("compiled-result-doubled", of("mm", _traced, doubled), "result 0: differs", "compiled-tensordot-aot"),
)
