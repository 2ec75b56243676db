"""Which op goes through which executor: the cases of the suite jit that are no scenarios."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ampcheck import ops
from ampcheck.cases import AROUND, Case, floating_count
from ampcheck.ids import one_off
from ampcheck.ops.describe import Op

if TYPE_CHECKING:
    from ampcheck.devices import Device

_SLOW = ("inductor",)
"""Each program is compiled by a C++ or Triton compiler, which takes seconds: nightly."""
_AROUND = ("script", "traced", "dynamo", "aot", "inductor", "export", "decomposed", "jaxcompile", "jaxjit")

_FEW = {
    "mm",
    "linear",
    "conv2d",
    "scaled_dot_product_attention",
    "mse_loss",
    "exp",
    "layer_norm",
    "avg_pool3d",
    "softmax.int",
    "sum.dim_IntList",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
    "cat",
    "stack",
    "addcmul",
    "atan2",
    "index_copy",
    "binary_cross_entropy",
    "relu",
    "add.Tensor",
    "batch_norm",
}
"""These and all with a policy go through the quick executors in every run, where a device has values and compiles no op
by itself, and in a nightly run through every executor on every device."""
_FEWEST = (
    "mm",
    "mse_loss",
    "exp",
    "softmax.int",
    "norm.Scalar",
    "addcmul",
    "cat",
    "binary_cross_entropy",
    "add.Tensor",
)
"""Those that every run sends through every executor on every device."""
_QUICK = ("script", "traced", "dynamo", "export")


def executors(device: Device, *, nightly: bool = False) -> tuple[str, ...]:
    """The executors that take programs on a device; the slow ones in a nightly run only."""
    return tuple(name for name in device.compilers if nightly or name not in _SLOW)


def compiled_cases(device: Device, rule: str, suite: str = "jit", *, nightly: bool = False) -> Iterator[Case]:
    """The cases of a rule that run through an executor on a device. Runs no op."""
    policies = device.policies()
    for op in ops.catalogue().values():
        if policies.get(op.overload, "fallthrough") != rule or device.type in op.samples[0].not_on:
            continue
        for executor in executors(device, nightly=nightly):
            if _runs(device, rule, op.overload, executor, nightly):
                yield from _of_op(device, rule, suite, op, executor)


def _runs(device: Device, rule: str, op: str, executor: str, nightly: bool) -> bool:
    """Whether an op goes through an executor: XLA takes long, and fake tensors tell less."""
    quick = device.has_values and device.type != "jax" and executor in _QUICK
    return op in _FEWEST or ((quick or nightly) and (op in _FEW or rule != "fallthrough"))


def _of_op(device: Device, rule: str, suite: str, op: Op, executor: str) -> Iterator[Case]:
    amp, count = device.default_amp, floating_count(op.samples[0])
    mixed = one_off(amp, "fp32", 0, count) if count > 1 else amp
    placed = ("", AROUND) if executor in _AROUND and op.overload in _FEWEST else ("",)
    for inputs in ("fp32", mixed) if count else ("given",):
        for sample in placed:
            yield Case(suite, rule, op.overload, sample, inputs, amp, device.name, device.token, executor)
