"""Reading kernels in a program's text and in graphs, and the rules for programs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ampcheck.bench.core import dtype_rules, kernels
from ampcheck.bench.core.kernels import BenchKernel
from ampcheck.bench.core.model import PRECISIONS, OpWorkload, Spec, Variant
from ampcheck.bench.core.precision_check import PrecisionCheck, check_precision
from ampcheck.devices.cpu import Cpu

BF16 = Variant(PRECISIONS["bf16"])
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


def workload(policy: str, *inputs: Spec) -> OpWorkload:
    given = inputs or (Spec((8, 8)),)
    return OpWorkload(name="test", family="test", policy=policy, inputs=given, call=torch.exp)


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
GIVEN_LOW = workload("upcast", Spec((8, 8), torch.bfloat16))


@pytest.mark.parametrize(
    ("text", "name", "of", "promised", "words"),
    [
        (CAST + dot("bf16", "bf16"), "bf16", workload("downcast"), (), ""),
        (CAST + dot("bf16", "f32"), "bf16", workload("downcast"), (), ""),
        (CAST + dot("f32", "f32"), "bf16", workload("downcast"), (), "1 of 1 products compute in fp32: what is bf16"),
        (CAST + dot("bf16", "f32"), "fp32", workload("downcast"), (), "computes in bf16 in a variant named fp32"),
        (CAST + WIDE, "bf16", workload("downcast"), (), ""),
        (WIDE, "bf16", GIVEN_LOW, ("upcast",), ""),
        (NARROW, "bf16", GIVEN_LOW, ("upcast",), "exponential received bf16 where autocast promises fp32"),
        (NARROW, "bf16", GIVEN_LOW, (), ""),  # nobody promised anything
        (NARROW, "bf16", workload("promote"), ("promote",), "computes in bf16 where autocast promises fp32"),
        (NARROW, "bf16", workload("fallthrough"), (), "computes in bf16, which none of its inputs is"),
        (WIDE, "bf16", workload("fallthrough"), (), ""),
        (WIDE, "bf16-native", workload("upcast"), (), "nothing is in bf16: exponential received fp32"),
    ],
)
def test_the_rules_for_programs(text: str, name: str, of: OpWorkload, promised: tuple[str, ...], words: str) -> None:
    read = kernels.program(HEAD + text)
    found = dtype_rules.judge(kernels.computing(read.kernels), Variant(PRECISIONS[name]), of, promised, read)
    assert words in found
    assert bool(found) == bool(words)


def test_a_program_s_text_is_what_is_judged() -> None:
    def eager() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.ones(2, 2) @ torch.ones(2, 2)

    def checked(text: str) -> PrecisionCheck:
        lowered = SimpleNamespace(as_text=lambda: text)
        ready = SimpleNamespace(
            eager=eager,
            jitted=SimpleNamespace(lower=lambda *_: lowered),
            arguments=(),
            restore=lambda: None,
            output=lambda: torch.ones(1),
        )
        return check_precision(ready, BF16, workload("downcast"), Cpu(), "jit")  # type: ignore[arg-type]

    assert checked(HEAD + CAST + dot("bf16", "bf16")) == PrecisionCheck("dot_general in bf16")
    assert checked(HEAD + CAST + dot("bf16", "f32")).text == "dot_general in bf16 giving fp32"
    assert checked(HEAD.replace("bf16", "f32") + dot("f32", "f32")).invalid.startswith("autocast cast nothing")
    assert checked(HEAD).invalid.endswith("was seen in the program")


def test_words_for_kernels() -> None:
    single = [BenchKernel(name, ("fp32",)) for name in ("mse_loss", "softmax.int")]
    many = [BenchKernel("mm", ("bf16", "bf16"))] * 12 + single
    assert dtype_rules.describe(many) == "12 of 14 kernels in bf16, 2 in fp32 (mse_loss, softmax)"
    assert dtype_rules.describe([BenchKernel("exp", ("fp32",)), BenchKernel("exp", ("fp32",))]) == "2 exp in fp32"
    assert dtype_rules.describe([BenchKernel(name, ("fp32",)) for name in "abcde"]) == "5 kernels in fp32"
    assert dtype_rules.describe([BenchKernel("softmax.int", ("bf16",), "fp32")]) == "softmax in fp32"


def test_an_optimizer_s_update_is_no_part_of_the_step() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def step() -> None:
        (weight @ weight).sum().backward()
        optimizer.step()

    names = {kernel.short for kernel in kernels.observed_step(step, Cpu(), ())}
    assert "mm" in names
    assert not {"add_", "_foreach_add_"} & names
    assert not torch.equal(weight, torch.ones(4, 4))  # it was made all the same


def test_a_region_around_the_call_is_not_the_call_s() -> None:
    x = torch.ones(2, 2)

    def inside() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x

    with torch.autocast("cpu", torch.bfloat16):
        assert not kernels.enters(lambda: x @ x, "cpu", torch.bfloat16)
        assert kernels.enters(inside, "cpu", torch.bfloat16)
    assert not kernels.enters(inside, "cpu", torch.float16)
