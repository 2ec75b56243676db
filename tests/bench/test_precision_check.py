"""A variant that is what its name says passes the precision check; another fails, and the reason says how."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.bench.core import kernels, precision_check
from ampcheck.bench.core.kernels import BenchKernel
from ampcheck.bench.core.model import PRECISIONS, OpWorkload, Spec, StepWorkload, Workload
from ampcheck.bench.core.precision_check import PrecisionCheck, check_precision, differs, judge
from ampcheck.bench.core.prepare import prepare, reference
from ampcheck.devices.cpu import Cpu
from ampcheck.errors import UsageError

X = Spec((16, 24))
MM = OpWorkload(name="mm-test", family="matmul", policy="downcast", inputs=(X, Spec((24, 8))), call=torch.mm)
HALF = Spec((16, 24), torch.bfloat16)


def op(policy: str, call: Callable[..., torch.Tensor], *inputs: Spec) -> OpWorkload:
    return OpWorkload(name="op-test", family="test", policy=policy, inputs=inputs, call=call)


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
    base = prepare(workload, PRECISIONS["fp32"], "cpu", "eager").output()
    output = prepare(workload, PRECISIONS[name], "cpu", "eager").output()
    ready = prepare(workload, PRECISIONS[name], "cpu", "eager")  # its `compiled_with` is all that "compile" asks for
    return check_precision(
        ready, PRECISIONS[name], workload, device or Cpu(), compiler, base, output, reference(workload)
    )


def small_step(model: Callable[[], nn.Module], **more: Any) -> StepWorkload:
    common = {"name": "step-test", "family": "steps", "policy": "mixed", "inputs": (Spec((8, 16)),) * 2}
    return StepWorkload(**common, model=model, loss=F.mse_loss, **more)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    yield
    torch._dynamo.reset()


PRODUCTS = {"fp32": "mm in fp32", "bf16": "mm in bf16", "fp16": "mm in fp16", "bf16-native": "mm in bf16"}


@pytest.mark.parametrize(
    ("workload", "name", "compiler", "text"),
    [
        *((MM, name, compiler, text) for name, text in PRODUCTS.items() for compiler in ("eager", "compile")),
        (op("upcast", F.mse_loss, HALF, HALF), "bf16", "eager", "mse_loss in fp32"),
        (op("promote", lambda a, b: torch.cat([a, b]), X, HALF), "bf16", "eager", "cat in fp32"),
        (op("fallthrough", torch.add, X, X), "bf16", "eager", "add in fp32"),
        (op("fallthrough", lambda x: x.view(-1), X), "bf16", "eager", "view in fp32"),
        (op("upcast", torch.exp, HALF), "bf16", "eager", "exp in bf16; cpu's autocast has no policy for it"),
    ],
)
def test_an_op_is_in_the_variant_s_precision(workload: OpWorkload, name: str, compiler: str, text: str) -> None:
    assert checked(workload, name, compiler) == PrecisionCheck(text)


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "bf16-native"])
def test_a_step_is_in_the_variant_s_precision_and_left_as_it_was(name: str) -> None:
    step = small_step(mlp)
    found = checked(step, name)
    assert not found.invalid
    assert ("mse_loss" in found.text) == (name in ("bf16", "fp16"))  # the loss alone is in float32
    ready = prepare(step, PRECISIONS[name], "cpu", "eager")
    before = ready.output()
    check_precision(ready, PRECISIONS[name], step, Cpu(), "eager", output=before)
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


ONES = torch.ones(4, 4)


def in_region() -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return ONES @ ONES


EXP = op("upcast", torch.exp, X)


@pytest.mark.parametrize(
    ("ready", "name", "workload", "compiler", "words"),
    [
        (Ready(lambda: ONES @ ONES), "bf16", MM, "eager", "the call enters no autocast region of bf16"),
        (Ready(lambda: ONES @ ONES), "bf16", small_step(mlp), "eager", "cast nothing: mm received fp32"),
        (Ready(in_region, compiled=lambda: ONES.mm(ONES)), "bf16", MM, "compile", "cast nothing: mm received fp32"),
        (Ready(lambda: ONES.bfloat16().mm(ONES.bfloat16())), "fp32", MM, "eager", "mm computes in bf16 in"),
        (Ready(lambda: ONES.mm(ONES)), "bf16-native", MM, "eager", "nothing is in bf16: mm received fp32"),
        (Ready(lambda: ONES.exp()), "fp16-native", EXP, "eager", "nothing is in fp16: exp received fp32"),
        (Ready(lambda: torch.arange(3)), "fp32", MM, "eager", "no kernel that computes with floating point"),
        (Ready(torch._dynamo.disable(lambda: torch.ones(2, 2))), "fp32", MM, "compile", "torch.compile made no graph"),
    ],
)
def test_a_variant_that_is_not_what_its_name_says_is_found(
    ready: Any, name: str, workload: Workload, compiler: str, words: str
) -> None:
    assert words in check_precision(ready, PRECISIONS[name], workload, Cpu(), compiler).invalid


@pytest.mark.parametrize(
    ("workload", "promised", "words"),
    [
        (op("downcast", torch.exp, X), {"exp": "downcast"}, "cast nothing: exp received fp32"),
        (op("downcast", torch.exp, X), {}, "cast nothing: exp received fp32"),
        (op("upcast", torch.exp, HALF), {"exp": "upcast"}, "exp received bf16 where autocast promises fp32"),
        (op("promote", torch.add, X, HALF), {"add.Tensor": "promote"}, "add received bf16 where autocast promises"),
        (op("upcast", partial(torch.softmax, dim=-1), HALF), {"softmax.int": "optdtype"}, "promises dtype=fp32"),
    ],
)
def test_a_broken_promise_is_found(workload: OpWorkload, promised: dict[str, str], words: str) -> None:
    assert words in checked(workload, "bf16", device=Promising(promised)).invalid


def test_what_cannot_be_seen_is_not_proven() -> None:
    def fails() -> None:
        raise RuntimeError("no kernel")

    ready = Ready(fails)
    found = check_precision(ready, PRECISIONS["bf16"], MM, Cpu(), "eager")
    assert found.invalid == "its dtypes could not be seen: RuntimeError: no kernel"
    assert ready.restored
    with pytest.raises(UsageError, match="there is no compiler named 'tpu'"):
        check_precision(ready, PRECISIONS["bf16"], MM, Cpu(), "tpu")


@pytest.mark.parametrize(
    ("name", "error", "platform", "text", "words"),
    [
        ("fp32", 1e-7, "cpu", "mm in fp32", ""),
        ("fp32", 3e-4, "cpu", "", "this is TF32"),
        ("fp32", 2.4e-3, "cpu", "", "this is bf16 products"),
        ("fp32", 2.4e-3, "tpu", "", "this is TPU default: bf16 products"),
        ("tf32", 3e-4, "cpu", "mm in fp32; error of TF32", ""),
        ("tf32", 2.4e-3, "cpu", "", "beyond what tf32 gives"),
        ("fp32-default", 2.4e-3, "tpu", "mm in fp32; error of TPU default: bf16 products", ""),
    ],
)
def test_float32_of_shortened_products_is_told(name: str, error: float, platform: str, text: str, words: str) -> None:
    exact = torch.randn(1000, dtype=torch.float64)
    device = Promising({}, platform)
    found = check_precision(
        Ready(lambda: ONES.mm(ONES)), PRECISIONS[name], MM, device, "eager", None, exact * (1 + error), exact
    )
    assert words in found.invalid
    assert bool(words) == bool(found.invalid)
    assert words or found.text == text


THIRD, WHOLE = torch.arange(5, dtype=torch.float64) / 3, torch.arange(5, dtype=torch.float64)
SAME = "the output is float32's bit for bit, so nothing was computed in bf16"


@pytest.mark.parametrize(
    ("name", "workload", "output", "reference", "reason"),
    [
        ("bf16", MM, THIRD, THIRD, SAME),
        ("bf16", MM, THIRD * 1.001, THIRD, ""),
        ("bf16", MM, WHOLE, WHOLE, ""),  # bfloat16 has these, so equality shows nothing
        ("fp32", MM, THIRD, THIRD, ""),
        ("bf16", EXP, THIRD, THIRD, ""),
        ("bf16-native", EXP, THIRD, THIRD, SAME),
        ("bf16", small_step(mlp, overflows=True), THIRD, THIRD, ""),
        ("bf16", MM, THIRD[:3], THIRD, "the output has 3 numbers and the first variant's 5"),
    ],
)
def test_an_output_that_is_float32_s_is_found(
    name: str, workload: Workload, output: torch.Tensor, reference: torch.Tensor, reason: str
) -> None:
    assert differs(PRECISIONS[name], workload, output.clone(), reference) == reason


# ---- programs and graphs


HEAD = "module @jit_program {\n  func.func public @main(%arg0: tensor<8x8xf32>) -> (tensor<8x8xbf16> {jax.a = 1}) {\n"
CAST = "    %0 = stablehlo.convert %arg0 : (tensor<8x8xf32>) -> tensor<8x8xbf16>\n"


def dot(operands: str, result: str) -> str:
    types = f"(tensor<8x8x{operands}>, tensor<8x8x{operands}>) -> tensor<8x8x{result}>"
    return f"    %5 = stablehlo.dot_general %0, %4, contracting_dims = [1] x [0], precision = [DEFAULT] : {types}\n"


CONV = (
    "    %3 = stablehlo.convolution(%0, %1) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {stride = [1]} "
    "{batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x3x8xf16>, tensor<4x3x3xf16>) -> "
    "tensor<2x4x6xf16>\n"
)


def test_a_program_is_read() -> None:
    read = kernels.program(HEAD + CAST + dot("bf16", "f32") + CONV + "    %6 = stablehlo.add %5, %5 : tensor<8xf32>\n")
    assert read.takes == ("fp32",)
    assert read.kernels == (
        BenchKernel("dot_general", ("bf16", "bf16"), out=("fp32",)),
        BenchKernel("convolution", ("fp16", "fp16"), out=("fp16",)),
        BenchKernel("add", ("fp32",), out=("fp32",)),
    )
    assert read.dtypes == {"fp32", "bf16", "fp16"}
    with pytest.raises(ValueError, match="not a StableHLO module"):
        kernels.program("HloModule jit_f")


WIDE = "    %1 = stablehlo.exponential %arg0 : tensor<8x8xf32>\n"
NARROW = "    %1 = stablehlo.exponential %0 : tensor<8x8xbf16>\n"
GIVEN_LOW, LOWERED = op("upcast", torch.exp, HALF), op("downcast", torch.exp, X)


@pytest.mark.parametrize(
    ("text", "name", "of", "promised", "words"),
    [
        (CAST + dot("bf16", "bf16"), "bf16", LOWERED, (), ""),
        (CAST + dot("bf16", "f32"), "bf16", LOWERED, (), ""),
        (CAST + dot("f32", "f32"), "bf16", LOWERED, (), "1 of 1 products compute in fp32: what is bf16"),
        (CAST + dot("bf16", "f32"), "fp32", LOWERED, (), "computes in bf16 in a variant named fp32"),
        (CAST + WIDE, "bf16", LOWERED, (), ""),
        (WIDE, "bf16", GIVEN_LOW, ("upcast",), ""),
        (NARROW, "bf16", GIVEN_LOW, ("upcast",), "exponential received bf16 where autocast promises fp32"),
        (NARROW, "bf16", GIVEN_LOW, (), ""),  # nobody promised anything
        (NARROW, "bf16", op("promote", torch.exp, X), ("promote",), "computes in bf16 where autocast promises fp32"),
        (NARROW, "bf16", op("fallthrough", torch.exp, X), (), "computes in bf16, which none of its inputs is"),
        (WIDE, "bf16", op("fallthrough", torch.exp, X), (), ""),
        (WIDE, "bf16-native", op("upcast", torch.exp, X), (), "nothing is in bf16: exponential received fp32"),
    ],
)
def test_the_rules_for_programs(text: str, name: str, of: OpWorkload, promised: tuple[str, ...], words: str) -> None:
    read = kernels.program(HEAD + text)
    found = judge(kernels.computing(read.kernels), PRECISIONS[name], of, promised, read)
    assert words in found
    assert bool(found) == bool(words)


def test_a_program_s_text_is_what_is_judged() -> None:
    def checked(text: str) -> PrecisionCheck:
        ready: Any = Ready(in_region, text=text)
        return check_precision(ready, PRECISIONS["bf16"], LOWERED, Cpu(), "jit")

    assert checked(HEAD + CAST + dot("bf16", "bf16")) == PrecisionCheck("dot_general in bf16")
    assert checked(HEAD + CAST + dot("bf16", "f32")).text == "dot_general in bf16 giving fp32"
    assert checked(HEAD.replace("bf16", "f32") + dot("f32", "f32")).invalid.startswith("autocast cast nothing")
    assert checked(HEAD).invalid.endswith("was seen in the program")


# ---- errors beside float64


SQUARE = op("downcast", torch.mm, Spec((64, 64)), Spec((64, 64)))
STEP = small_step(mlp)


@pytest.mark.parametrize(
    ("found", "precision", "workload", "words"),
    [
        (0.5, "bf16", SQUARE, "error 5.0e-01 is beyond what bf16 gives (3e-02 at most)"),
        (0.02, "fp16", SQUARE, "error 2.0e-02 is beyond what fp16 gives (8e-03 at most)"),
        (0.02, "bf16-native", SQUARE, ""),
        (inf, "bf16", SQUARE, "the output is not finite, or not zero, where float64's is"),
        (3e-4, "fp32", SQUARE, "error 3.0e-04 is beyond what fp32 gives (3e-05 at most): this is TF32"),
        (0.5, "fp32", SQUARE, "error 5.0e-01 is beyond what fp32 gives (3e-05 at most)"),
        (2e-3, "fp32", GIVEN_LOW, ""),  # inputs in lower precision are no fault of the variant
        (2e-2, "fp16", GIVEN_LOW, ""),
        (0.5, "fp32", GIVEN_LOW, "error 5.0e-01 is beyond what bf16 gives (3e-02 at most)"),
    ],
)
def test_what_is_too_large_says_so(found: float, precision: str, workload: OpWorkload, words: str) -> None:
    assert precision_check.beyond(found, PRECISIONS[precision], workload, "cuda") == words
