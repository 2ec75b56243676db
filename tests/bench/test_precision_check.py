"""A variant that is what its name says passes the precision check; another fails, and the reason says how."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.bench.core.model import PRECISIONS, OpWorkload, Spec, StepWorkload, Variant, Workload
from ampcheck.bench.core.precision_check import PrecisionCheck, check_precision, differs, read_back
from ampcheck.bench.core.prepare import prepare, reference
from ampcheck.devices.cpu import Cpu
from ampcheck.errors import UsageError
from tests.cli_support import LIMIT, ROOT

X = Spec((16, 24))
MM = OpWorkload(name="mm-test", family="matmul", policy="downcast", flops=1, inputs=(X, Spec((24, 8))), call=torch.mm)
HALF = Spec((16, 24), torch.bfloat16)


def op(policy: str, call: Callable[..., torch.Tensor], *inputs: Spec) -> OpWorkload:
    return OpWorkload(name="op-test", family="test", policy=policy, inputs=inputs, call=call)


def variant(name: str) -> Variant:
    return Variant(PRECISIONS[name])


class Ready:
    """A variant whose calls are given."""

    def __init__(self, eager: Callable[[], Any], *, text: str = "", compiled: Callable[[], Any] | None = None) -> None:
        self.eager, self.arguments = eager, ()
        self.jitted = SimpleNamespace(lower=lambda *_: SimpleNamespace(as_text=lambda: text))
        self.compiled = compiled or eager
        self.restored = 0

    def compiled_with(self, backend: Any) -> Callable[[], Any]:
        return torch.compile(self.compiled, backend=backend)

    def output(self) -> torch.Tensor:
        return torch.arange(5, dtype=torch.float64) / 3

    def restore(self) -> None:
        self.restored += 1


class Promising(Cpu):
    """The CPU, with policies that PyTorch's autocast does not have."""

    def __init__(self, more: Mapping[str, str], platform: str = "") -> None:
        self.more, self.platform = more, platform

    def policies(self) -> Mapping[str, str]:
        return {**super().policies(), **self.more}

    def describe(self) -> dict[str, str]:
        return {"platform": self.platform} if self.platform else super().describe()


def checked(workload: Workload, name: str, compiler: str = "eager", device: Cpu | None = None) -> PrecisionCheck:
    """The precision check of a real variant, its output and errors included."""
    base = prepare(workload, variant("fp32"), "cpu", "eager").output()
    output = prepare(workload, variant(name), "cpu", "eager").output()
    ready = prepare(workload, variant(name), "cpu", "eager")  # its `compiled_with` is all that "compile" asks for
    return check_precision(ready, variant(name), workload, device or Cpu(), compiler, base, output, reference(workload))


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("name", "text"),
    [("fp32", "mm in fp32"), ("bf16", "mm in bf16"), ("fp16", "mm in fp16"), ("bf16-native", "mm in bf16")],
)
def test_a_product_is_in_the_variant_s_precision(name: str, text: str) -> None:
    assert checked(MM, name) == PrecisionCheck(text)


@pytest.mark.parametrize("name", ["fp32", "bf16", "bf16-native"])
def test_graphs_of_compile_are_read(name: str) -> None:
    assert checked(MM, name, "compile") == PrecisionCheck("mm in bf16" if variant(name).precision.low else "mm in fp32")


def test_a_composite_op_is_judged_by_its_parts() -> None:
    cell = OpWorkload(
        name="cell-test",
        family="test",
        policy="downcast",
        flops=1,
        inputs=(Spec((4, 8)),),
        module=lambda: nn.RNNCell(8, 6),
        call=lambda cell, x: cell(x),
    )
    found = checked(cell, "bf16")
    assert not found.invalid
    assert "in bf16" in found.text


def test_ops_without_products() -> None:
    loss = checked(op("upcast", F.mse_loss, HALF, HALF), "bf16")
    assert loss == PrecisionCheck("mse_loss in fp32")
    assert checked(op("promote", lambda a, b: torch.cat([a, b]), X, HALF), "bf16") == PrecisionCheck("cat in fp32")
    assert checked(op("fallthrough", torch.add, X, X), "bf16") == PrecisionCheck("add in fp32")
    assert checked(op("fallthrough", lambda x: x.view(-1), X), "bf16") == PrecisionCheck("view in fp32")
    assert checked(op("upcast", torch.exp, HALF), "bf16").text == "exp in bf16; cpu's autocast has no policy for it"


def small_step(model: Callable[[], nn.Module], **more: Any) -> StepWorkload:
    inputs = (Spec((8, 16)), Spec((8, 16)))
    return StepWorkload(
        name="step-test", family="steps", policy="mixed", flops=1, inputs=inputs, model=model, loss=F.mse_loss, **more
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "bf16-native"])
def test_a_step_is_in_the_variant_s_precision(name: str) -> None:
    found = checked(small_step(mlp), name)
    assert not found.invalid
    assert ("mse_loss" in found.text) == (name in ("bf16", "fp16"))  # the loss alone is in float32


def test_a_step_is_left_as_it_was() -> None:
    step = small_step(mlp)
    ready = prepare(step, variant("bf16"), "cpu", "eager")
    before = ready.output()
    check_precision(ready, variant("bf16"), step, Cpu(), "eager", output=before)
    assert torch.equal(ready.output(), before)


class Shielded(nn.Module):
    """Two layers, one of which the region does not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        with torch.autocast("cpu", enabled=False):
            out: torch.Tensor = self.b(y.to(self.b.weight.dtype))
        return out


@pytest.mark.parametrize("compiler", ["eager", "compile"])
def test_a_part_of_a_step_outside_of_the_region_is_found(compiler: str) -> None:
    found = checked(small_step(Shielded), "bf16", compiler)
    assert "products are not in bf16: " in found.invalid
    assert "received fp32" in found.invalid


def test_a_region_that_is_not_entered_is_found() -> None:
    x = torch.randn(4, 4)
    found = check_precision(Ready(lambda: torch.mm(x, x)), variant("bf16"), MM, Cpu(), "eager")
    assert found.invalid == "the call enters no autocast region of bf16"
    found = check_precision(Ready(lambda: torch.mm(x, x)), variant("bf16"), small_step(mlp), Cpu(), "eager")
    assert found.invalid == "autocast cast nothing: mm received fp32"


def test_an_autocast_that_casts_nothing_is_found() -> None:
    found = checked(op("downcast", torch.exp, X), "bf16", device=Promising({"exp": "downcast"}))
    assert found.invalid == "autocast cast nothing: exp received fp32"
    found = checked(op("downcast", torch.exp, X), "bf16")  # nobody promised, and yet nothing was cast
    assert found.invalid == "autocast cast nothing: exp received fp32"


def test_a_broken_promise_is_found() -> None:
    found = checked(op("upcast", torch.exp, HALF), "bf16", device=Promising({"exp": "upcast"}))
    assert found.invalid == "exp received bf16 where autocast promises fp32"
    add = checked(op("promote", torch.add, X, HALF), "bf16", device=Promising({"add.Tensor": "promote"}))
    assert add.invalid == "add received bf16 where autocast promises fp32"
    softmax = partial(torch.softmax, dim=-1)
    found = checked(op("upcast", softmax, HALF), "bf16", device=Promising({"softmax.int": "optdtype"}))
    assert found.invalid == "softmax received bf16 where autocast promises dtype=fp32"


def test_float32_and_native_variants_are_held_to_their_names() -> None:
    x = torch.randn(4, 4)
    half = Ready(lambda: torch.mm(x.bfloat16(), x.bfloat16()))
    assert (
        check_precision(half, variant("fp32"), MM, Cpu(), "eager").invalid
        == "mm computes in bf16 in a variant named fp32"
    )
    native = check_precision(Ready(lambda: torch.mm(x, x)), variant("bf16-native"), MM, Cpu(), "eager")
    assert native.invalid == "nothing is in bf16: mm received fp32"
    native = check_precision(Ready(lambda: x.exp()), variant("fp16-native"), op("upcast", torch.exp, X), Cpu(), "eager")
    assert native.invalid == "nothing is in fp16: exp received fp32"


def test_a_compiled_call_without_its_region_is_found() -> None:
    x = torch.randn(4, 4)

    def eager() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.mm(x, x)

    found = check_precision(Ready(eager, compiled=lambda: torch.mm(x, x)), variant("bf16"), MM, Cpu(), "compile")
    assert found.invalid == "autocast cast nothing: mm received fp32"


def test_what_cannot_be_seen_is_not_proven() -> None:
    def fails() -> None:
        raise RuntimeError("no kernel")

    ready = Ready(fails)
    found = check_precision(ready, variant("bf16"), MM, Cpu(), "eager")
    assert found.invalid == "its dtypes could not be seen: RuntimeError: no kernel"
    assert ready.restored
    found = check_precision(Ready(lambda: torch.arange(3)), variant("fp32"), MM, Cpu(), "eager")
    assert found.invalid == "no kernel that computes with floating point numbers was seen as it ran"
    skipped = torch._dynamo.disable(lambda: torch.ones(2, 2))
    found = check_precision(Ready(skipped), variant("fp32"), MM, Cpu(), "compile")
    assert found.invalid == "torch.compile made no graph that computes anything, so the call ran op by op"
    with pytest.raises(UsageError, match="there is no compiler 'tpu'"):
        check_precision(ready, variant("bf16"), MM, Cpu(), "tpu")


def test_float32_variants_with_shortened_products_are_named() -> None:
    x = torch.randn(4, 4)
    exact = torch.randn(1000, dtype=torch.float64)
    ready, platforms = Ready(lambda: torch.mm(x, x)), {"cpu": Cpu(), "tpu": Promising({}, "tpu")}

    def judged(name: str, error: float, platform: str = "cpu") -> PrecisionCheck:
        output = exact * (1 + error)
        return check_precision(ready, variant(name), MM, platforms[platform], "eager", None, output, exact)

    assert judged("fp32", 1e-7) == PrecisionCheck("mm in fp32")
    assert "this is TF32" in judged("fp32", 3e-4).invalid
    assert "this is bf16 products" in judged("fp32", 2.4e-3).invalid
    assert "this is TPU default: bf16 products" in judged("fp32", 2.4e-3, "tpu").invalid
    assert judged("tf32", 3e-4) == PrecisionCheck("mm in fp32; error of TF32")
    assert judged("fp32-default", 2.4e-3, "tpu") == PrecisionCheck("mm in fp32; error of TPU default: bf16 products")
    assert "beyond what tf32 gives" in judged("tf32", 2.4e-3).invalid


def test_float32_s_own_output_is_not_compared_with_itself() -> None:
    x, values = torch.randn(4, 4).bfloat16(), torch.arange(5, dtype=torch.float64) / 3
    found = check_precision(Ready(lambda: torch.mm(x, x)), variant("bf16-native"), MM, Cpu(), "eager", values, values)
    assert not found.invalid


INSIDE = """
import torch
import ampcheck.jax_device
from tests.bench.test_precision_check import MM, HALF, variant, op, prepare, check_precision, reference, small_step, mlp
from ampcheck.devices.jax import Jax

for workload in (MM, small_step(mlp), op("upcast", torch.exp, HALF)):
    exact, base = reference(workload), None
    for name in ("fp32", "bf16"):
        ready = prepare(workload, variant(name), "jax", "jit")
        output = ready.output()
        base = output if base is None else base
        print(check_precision(ready, variant(name), workload, Jax(), "jit", base, output, exact))
ready = prepare(MM, variant("bf16"), "jax", "eager")
print(check_precision(ready, variant("bf16"), MM, Jax(), "eager"))
"""


@pytest.mark.nightly
def test_programs_of_the_jax_device() -> None:
    pytest.importorskip("jax")
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", INSIDE]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert all(found.endswith("invalid='')") for found in lines), done.stdout
    wanted = [
        "dot_general in fp32",
        "dot_general in bf16",
        "",
        "",
        "",
        "exponential in fp32 on bf16 inputs",
        "mm in bf16",
    ]
    assert len(lines) == len(wanted)
    assert all(text in found for text, found in zip(wanted, lines, strict=True)), done.stdout
    assert all("dot_general in bf16" in found for found in (lines[1], lines[3]))


def test_an_output_that_is_float32_s_is_found() -> None:
    exp = op("upcast", torch.exp, X)
    skipped = dataclasses.replace(small_step(mlp), overflows=True)

    def differ(name: str, workload: Workload, output: torch.Tensor, reference: torch.Tensor) -> str:
        return differs(variant(name), workload, output, reference)

    third = torch.arange(5, dtype=torch.float64) / 3
    whole = torch.arange(5, dtype=torch.float64)  # bfloat16 has these, so equality shows nothing
    same = "the output is float32's bit for bit, so nothing was computed in bf16"
    assert differ("bf16", MM, third.clone(), third) == same
    assert differ("bf16", MM, third * 1.001, third) == ""
    assert differ("bf16", MM, whole.clone(), whole) == ""
    assert differ("fp32", MM, third.clone(), third) == ""
    assert differ("bf16", exp, third.clone(), third) == ""
    assert differ("bf16-native", exp, third.clone(), third) == same
    assert differ("bf16", skipped, third.clone(), third) == ""
    assert differ("bf16", MM, third[:3], third) == "the output has 3 numbers and the first variant's 5"


# ---- whether the work was over


class Later:
    """A result that a thread gives some time after it was asked for."""

    def __init__(self, seconds: float) -> None:
        self.done = threading.Event()
        threading.Timer(seconds, self.done.set).start()

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        self.done.wait()
        return tensor.clone()


def test_work_that_goes_on_after_the_clock_is_found() -> None:
    running = Later(0.2)
    reason = read_back([torch.ones(3)], running.host, 0.01)
    assert re.match(r"work was still running when the clock stopped: \S+ s of it after 0.01 s", reason)
    ended = Later(0)
    ended.done.wait()
    assert read_back([torch.ones(3)], ended.host, 0.5) == ""


@pytest.mark.parametrize(
    ("first", "second", "sample", "late"),
    [
        (1e-4, 1e-6, 1e-6, False),  # a tiny call: reading has its own costs
        (5e-4, 1e-6, 1e-6, True),
        (0.15, 0.01, 1.0, False),  # less than a fifth of the sample
        (0.35, 0.1, 1.0, True),
        (3.0, 3.0, 0.01, False),  # reading is slow, the second time as well
    ],
)
def test_how_late_is_late(first: float, second: float, sample: float, late: bool) -> None:
    times = iter([0.0, first, first + second])
    reason = read_back({"out": torch.ones(1)}, torch.clone, sample, lambda: next(times))
    assert bool(reason) is late


def test_every_output_is_read_twice() -> None:
    read, ticks = [], count()
    read_back([torch.ones(1), (torch.zeros(2),)], lambda t: read.append(t.numel()) or t, 1.0, lambda: next(ticks))
    assert read == [1, 2, 1, 2]
