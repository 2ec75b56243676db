"""Every overload of PyTorch's autocast policy tables runs on the jax device with CPU's values, in each dtype."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ampcheck import samples
from ampcheck.jax_device.dispatch.schema import overload
from ampcheck.samples.describe import Op, Sample, map_leaves
from ampcheck.samples.tensors import host_tensor
from ampcheck.spec.policies import rows
from tests.jax.agreement import tensors

TOLERANCE = {"fp32": 2e-5, "fp16": 8e-3, "bf16": 3e-2}
NOT_HERE = {
    "_cudnn_rnn": "takes a weight buffer in cuDNN's own format",
    "mkldnn_rnn_layer": "is a layer of oneDNN's, which runs on a CPU only",
    "miopen_rnn": "takes a weight buffer in MIOpen's own format",
}
# Overloads that CPU lacks, and one that computes the same from the same arguments.
STAND_INS = {
    "_scaled_dot_product_flash_attention": lambda q, k, v, p=0.0, causal=False: (
        torch.nn.functional.scaled_dot_product_attention(q, k, v, None, p, causal)
    ),
    "_thnn_fused_gru_cell": lambda i, h, hx, bi=None, bh=None: _gru(i, h, hx, bi, bh),
    "_thnn_fused_lstm_cell": lambda i, h, cx, bi=None, bh=None: _lstm(i, h, cx, bi, bh),
    "cudnn_convolution": lambda x, w, pad, stride, dilation, groups, *_: torch.convolution(
        x, w, None, stride, pad, dilation, False, [0], groups
    ),
    "cudnn_convolution_transpose": lambda x, w, pad, extra, stride, dilation, groups, *_: torch.convolution(
        x, w, None, stride, pad, dilation, True, extra, groups
    ),
}


def _lstm(i: Any, h: Any, cx: Any, bi: Any, bh: Any) -> Any:
    gates = i + h + (0 if bi is None else bi + bh)
    a, f, g, o = gates.chunk(4, 1)
    cy = f.sigmoid() * cx + a.sigmoid() * g.tanh()
    return o.sigmoid() * cy.tanh(), cy


def _gru(i: Any, h: Any, hx: Any, bi: Any, bh: Any) -> Any:
    (ir, iz, i_n), (hr, hz, hn) = (
        (i + (0 if bi is None else bi)).chunk(3, 1),
        (h + (0 if bh is None else bh)).chunk(3, 1),
    )
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (i_n + r * hn).tanh()
    return n + z * (hx - n)


def listed(key: str) -> Iterator[Op]:
    """The ops of a key of the table; an overload that is left out without a reason is an error."""
    for row in rows("2.13"):
        if row.key == key and row.overload not in NOT_HERE:
            yield samples.catalogue()[row.overload]


def built(sample: Sample, dtype: str, device: str, wide: bool) -> tuple[Any, dict[str, Any]]:
    """The sample's arguments; `wide`: in float32, with the values they have in `dtype`."""
    position = -1

    def make(arg: Any) -> torch.Tensor:
        nonlocal position
        position += 1
        tensor = host_tensor(arg, arg.dtype or dtype, position)
        tensor = tensor.float() if wide and tensor.is_floating_point() else tensor
        return tensor if arg.device == "cpu" else tensor.to(device)

    return map_leaves(sample.args, make), {name: map_leaves(value, make) for name, value in sample.kwargs.items()}


def called(op: Op, sample: Sample, dtype: str, device: str, wide: bool = False) -> Any:
    """What the overload returns."""
    args, kwargs = built(sample, dtype, device, wide)
    stand_in = STAND_INS.get(op.overload) if device == "cpu" else None
    return (stand_in or overload(f"aten::{op.overload}"))(*args, **kwargs)


def mistake(op: Op, sample: Sample, dtype: str) -> str:
    """What is wrong with the op on the device, "" where nothing is.

    CPU computes the reference in float32; where it raises there too, or has no such dtype, the device may as well.
    """
    try:
        expected = called(op, sample, dtype, "cpu", wide=True)
    except (RuntimeError, NotImplementedError) as error:
        return _raises(op, sample, dtype, str(error))
    try:
        found = tensors(called(op, sample, dtype, "jax"))
    except Exception as error:
        return "" if _cpu_lacks(op, sample, dtype) else f"{type(error).__name__}: {error}"
    wanted = tensors(expected)
    for mine, theirs in zip(found, wanted, strict=False):
        if op.values != "exact":
            continue
        scale = TOLERANCE[dtype]
        try:
            torch.testing.assert_close(
                mine.cpu().to(theirs.dtype), theirs, rtol=scale, atol=scale, equal_nan=True, check_stride=False
            )
        except AssertionError as error:
            return str(error)
    return "" if wanted and len(found) >= len(wanted) else f"{len(found)} results of {len(wanted)}"


def _raises(op: Op, sample: Sample, dtype: str, said: str) -> str:
    try:
        called(op, sample, dtype, "jax")
    except (RuntimeError, NotImplementedError):
        return ""
    return f"runs where CPU raises {said}"


def _cpu_lacks(op: Op, sample: Sample, dtype: str) -> bool:
    try:
        called(op, sample, dtype, "cpu")
    except (RuntimeError, NotImplementedError):
        return True
    return False


def demand(key: str, dtype: str, *, main: bool) -> None:
    """Asserts that no op is mistaken on its samples that call the overload itself, or on the first such one."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations and fallbacks of the ops themselves
        for op in listed(key):
            samples = [s for s in op.samples if s.call == "aten"]
            for sample in samples[:1] if main else samples:
                wrong = mistake(op, sample, dtype)
                found += [f"{op.overload} {sample.name} {dtype}: {wrong}"] if wrong else []
    assert not found, "\n".join(found)


@pytest.mark.nightly
def test_cuda_table_in_float32() -> None:
    demand("AutocastCUDA", "fp32", main=True)


@pytest.mark.nightly
def test_cuda_table_in_bfloat16() -> None:
    demand("AutocastCUDA", "bf16", main=True)


def test_cuda_table_in_float16() -> None:
    demand("AutocastCUDA", "fp16", main=True)


def test_cpu_table_in_bfloat16() -> None:
    demand("AutocastCPU", "bf16", main=True)


def test_a_wrong_value_is_told() -> None:
    op = samples.catalogue()["log1p"]
    STAND_INS["log1p"] = lambda x: torch.log1p(x) + 0.1
    try:
        assert "not close" in mistake(op, op.samples[0], "fp32")
    finally:
        del STAND_INS["log1p"]
