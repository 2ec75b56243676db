"""The overhead workloads do what they say, on the CPU and on jax."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.bench.core.model import OverheadWorkload
from ampcheck.bench.workloads import catalogue
from tests.cli_support import LIMIT, ROOT

OVERHEAD = {name: w for name, w in catalogue().items() if isinstance(w, OverheadWorkload)}
BF16 = torch.bfloat16


def casts(call: Callable[[], Any]) -> int:
    """Count the casts of tensors to bfloat16 in a call."""

    class Counting(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func is torch.ops.aten._to_copy.default and (kwargs or {}).get("dtype") is BF16
            return func(*args, **(kwargs or {}))

    with Counting() as mode:
        call()
    return mode.count


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("op-without-cast", {"outside": 0, "inside": 0}),
        ("op-fallthrough", {"outside": 0, "inside": 0}),
        ("op-with-cast", {"outside": 0, "inside": 100, "by-hand": 100}),
        ("weight-cache", {"on": 1, "off": 8}),
    ],
)
def test_overhead_casts_as_often_as_it_says(name: str, expected: dict[str, int]) -> None:
    assert {variant: casts(call) for variant, call in OVERHEAD[name].make("cpu").items()} == expected


@pytest.mark.parametrize("name", OVERHEAD)
def test_overhead_runs_and_leaves_autocast_as_it_was(name: str) -> None:
    variants = OVERHEAD[name].make("cpu")
    assert len(variants) > 1
    for call in variants.values():
        call()
        call()
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == BF16


def test_the_baselines_come_first() -> None:
    firsts = {name: next(iter(w.make("cpu"))) for name, w in OVERHEAD.items()}
    ops = dict.fromkeys(("op-without-cast", "op-fallthrough", "op-with-cast"), "outside")
    others = {"compile-toggle": "steady", "weight-cache": "on", "scaler-step": "plain"}
    assert firsts == {**ops, **others, "region-enter": "none", "op-python-kernel": "none"}


def test_the_scaler_makes_the_same_updates() -> None:
    variants = OVERHEAD["scaler-step"].make("cpu")
    for _ in range(3):
        found = {name: call() for name, call in variants.items()}
    assert torch.equal(found["plain"], found["scaler"])
    assert not torch.equal(found["plain"], torch.ones(64, 64))


def test_the_python_kernel_is_entered_in_a_region_alone() -> None:
    variants = OVERHEAD["op-python-kernel"].make("cpu")
    entered = {}
    for name, call in variants.items():
        names: list[str] = []
        sys.setprofile(lambda frame, event, _, names=names: names.append(frame.f_code.co_name))
        try:
            call()
        finally:
            sys.setprofile(None)
        entered[name] = names.count("kernel") // 2  # its call and its return
    assert entered == {"none": 0, "python": 50}


ON_JAX = """
import torch
import ampcheck.jax_device
from ampcheck.bench.core.model import OverheadWorkload
from ampcheck.bench.workloads import catalogue
from ampcheck.bench.core.prepare import make_inputs, make_module

for name, w in catalogue().items():
    if isinstance(w, OverheadWorkload):
        for variant, call in w.make("jax").items():
            out = call()
            assert out is None or out.device.type == "jax", (name, variant)
            assert not torch.is_autocast_enabled("jax")
for name in ("conv2d-nhwc", "sdpa-masked", "cross-entropy"):
    w = catalogue()[name]
    out = w.call(*make_inputs(w, "jax"))
    torch.testing.assert_close(out.cpu(), w.call(*make_inputs(w, "cpu")), rtol=1e-3, atol=1e-3)
assert make_module(catalogue()["lstm-step"], "jax").head.weight.device.type == "jax"
"""


@pytest.mark.nightly
@pytest.mark.skipif(
    find_spec("jax") is None or find_spec("torchax") is None, reason="the extra ampcheck[jax] is not here"
)
def test_overhead_and_inputs_on_jax() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", ON_JAX], capture_output=True, text=True, env=env, timeout=LIMIT)
    assert done.returncode == 0, done.stderr[-2000:]
