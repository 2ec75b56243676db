"""What each kind of check says of a case that is not as promised: one planted mistake and the sentence about it."""

from collections.abc import Iterator

import pytest

from tests.faults import BY_NAME
from tests.faults.mutant import CPU, CUDA
from tests.faults.suites import Runners

ANOTHER = "expected fp16 (rule downcast: eligible arguments are cast to the region's dtype)"
"""How a message about a cast of rule `downcast` ends in a region of float16."""
OPS = {
    "mm-in-float32": (
        "eager/downcast/mm-fp32-fp16-cpu",
        f"argument 1 of aten::mm was given as fp32 and reached the kernel as fp32; {ANOTHER}",
    ),
    "linear-bias-forgotten": (
        "eager/downcast/linear-fp32-fp16-cpu",
        f"argument 2 of aten::linear was given as fp32 and reached the kernel as fp32; {ANOTHER}",
    ),
    "polar-useless-cast": (
        "eager/upcast/polar-fp16-fp16-cpu",
        "autocast made 3 casts of the arguments of aten::polar; expected 2 "
        "(rule upcast: eligible arguments are cast to float32)",
    ),
    "addbmm-result-cast-back": (
        "eager/downcast/addbmm-fp32-fp16-cpu",
        "output 0 of aten::addbmm is fp32; expected fp16",
    ),
    "pinverse-result-rounded": (
        "eager/upcast/pinverse-fp32-fp16-cpu",
        "output 0 of aten::pinverse differs from the same op on explicitly cast inputs by up to 0.000169; "
        "expected the same bits",
    ),
    "mm-changes-its-arguments": (
        "eager/downcast/mm-fp32-fp16-cpu",
        "argument 0 of aten::mm was fp32 before the call and is fp16 after it; autocast casts copies",
    ),
}
OPS_ON_CUDA = {
    "cumsum-fills-low": (
        "eager/optdtype/cumsum-fp32-fp16-vcu",
        "aten::cumsum ran with dtype=fp16; expected dtype=fp32 (rule optdtype: dtype=float32 is filled in if the "
        "caller gave none and the first argument is eligible)",
    ),
    "softmax-overrides-the-caller": (
        "eager/optdtype/softmax.int+double-fp32-fp16-vcu",
        "aten::softmax.int ran with dtype=fp32; the caller's dtype=fp64 was to be left alone (rule optdtype: "
        "dtype=float32 is filled in if the caller gave none and the first argument is eligible)",
    ),
    "norm-not-redirected": (
        "eager/append/norm.Scalar-fp32-fp16-vcu",
        "the kernel of aten::norm.ScalarOpt_dtype never ran; what ran was: norm.Scalar (rule append: the overload with "
        "a dtype runs, in float32 if the first argument is eligible)",
    ),
    "cross-entropy-refused-badly": (
        "eager/banned/binary_cross_entropy-fp32-fp16-vcu",
        "aten::binary_cross_entropy raised RuntimeError: this is not supported; expected a RuntimeError that names "
        "binary_cross_entropy_with_logits (rule banned: the call is refused by an error that names the op to use "
        "instead)",
    ),
}
GRADIENTS = {
    "gradient-kept-in-low": (
        "autograd/downcast/addmm-fp32-grad-bf16-cpu",
        "the gradient of argument 0 of aten::addmm is bf16 of shape (3, 5); expected fp32 (3, 5)",
    ),
    "gradient-of-a-constant": (
        "autograd/upcast/hinge_embedding_loss-fp32-grad-bf16-cpu",
        "the gradient of argument 1 of aten::hinge_embedding_loss is there; expected it to be missing (rule upcast: "
        "eligible arguments are cast to float32, and its gradient passes the cast back)",
    ),
    "gradient-without-a-graph": (
        "autograd/downcast/matmul-fp32-grad-bf16-cpu",
        "the outputs of aten::matmul that require grad are none; expected bf16 (rule downcast: eligible arguments are "
        "cast to the region's dtype, and its gradient passes the cast back)",
    ),
    "gradient-refused": (
        "autograd/downcast/conv3d-fp32-grad-bf16-cpu",
        "aten::conv3d raised RuntimeError: no gradient under autocast; the same call on explicitly cast inputs "
        "succeeds",
    ),
}
SCENARIOS = {
    "exit-keeps-enabled": (
        "eager/context/restores_on_exit-fp16-cpu",
        "state after the region: got (True, torch.bfloat16, True); expected (False, torch.bfloat16, True)",
    ),
    "takes-torch-device": (
        "eager/errors/refused-device-bf16-cpu",
        "the wrong call device: raised nothing; expected ValueError saying 'Expected `device_type` of type `str`'",
    ),
    "unsupported-dtype-silent": (
        "eager/errors/unsupported_dtype-single-bf16-cpu",
        "a region of torch.float32: warned of nothing; expected UserWarning saying 'torch.bfloat16, torch.float16'",
    ),
    "second-entry-disabled": (
        "eager/programs/known-decorated_calls-fp16-cpu",
        "line 7: state of cpu inside the region is off in fp16 with the cache on, depth 2; expected on in fp16 with "
        "the cache on, depth 2",
    ),
    "deviations-mended": (
        "eager/decorator/recursion-fp16-cpu",
        "deviation 'region-object-entered-twice' is stale: the case passes now (ampcheck/devices/deviations.toml)",
    ),
}
COMPILED = {
    "jit-region-dropped": (
        "jit/downcast/mm-fp32-dynamo-bf16-cpu",
        "output 0 of dynamo: aten::mm is fp32; expected bf16",
    ),
    "jit-second-call-in-float32": ("jit/downcast/mm-fp32-dynamo-bf16-cpu", "the first call was right"),
    "jit-state-left-on": (
        "jit/downcast/mm-fp32-dynamo-bf16-cpu",
        "dynamo: aten::mm left the state (True, torch.bfloat16, True, 0); eager mode (False, torch.bfloat16, True, 0)",
    ),
    "jit-gradient-twice": (
        "jit/downcast/mm-fp32-dynamo-bf16-cpu",
        "gradient 0 of dynamo: aten::mm is 3.55 away from eager mode's; expected at most 0",
    ),
}
BACKENDS = {
    "mm-wrong": (
        "eager/downcast/mm-fp32-fp16-opaque",
        "output 0 of aten::mm is -1.74414 at [0, 0]; that is off by up to 0.698, and a right kernel in fp16 by at most "
        "0.00757; expected -1.39562, the float64 result on the CPU; it is wrong without autocast, too",
    ),
    "another-shape": (
        "eager/downcast/mm-fp32-fp16-opaque",
        "output 0 of aten::mm has shape (1, 3, 5); expected (3, 5); it is wrong without autocast, too",
    ),
    "column-major": (
        "eager/fallthrough/tanh-fp32-fp16-opaque",
        "output 0 of aten::tanh has strides (1, 3) in its dimensions of several elements; expected (4, 1); it is wrong "
        "without autocast, too",
    ),
    "float32-for-low": (
        "eager/fallthrough/tanh-fp16-fp16-opaque",
        "output 0 of aten::tanh is fp32; expected fp16, as PyTorch's CPU and Meta kernels give; it is wrong without "
        "autocast, too",
    ),
    "zeroes-its-input": (
        "eager/downcast/mm-fp64-fp16-opaque",
        "argument 0 of aten::mm holds other values after the call; it is only read; it is wrong without autocast, too",
    ),
    "raises-runtime-error-in-low": (
        "eager/downcast/mm-fp32-fp16-opaque",
        "aten::mm raised RuntimeError: injected; it raises that without autocast, too",
    ),
    "raises-in-regions-alone": (
        "eager/downcast/mm-fp32-fp16-opaque",
        "aten::mm raised RuntimeError: injected; the same call on explicitly cast inputs succeeds",
    ),
    "copies-refuse-bf16": (
        "eager/downcast/mm-bf16-fp16-opaque",
        "the inputs of aten::mm cannot be made on opaque: RuntimeError: injected: bfloat16 cannot be copied",
    ),
}
SAID = {CPU: {**OPS, **GRADIENTS, **SCENARIOS, **COMPILED}, CUDA: OPS_ON_CUDA, "opaque": BACKENDS}


@pytest.fixture(scope="module")
def runners() -> Iterator[Runners]:
    made = Runners()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("device", "mutant", "case", "sentence"),
    [
        pytest.param(device, mutant, case, sentence, id=mutant)
        for device, table in SAID.items()
        for mutant, (case, sentence) in table.items()
    ],
)
def test_message(device: str, mutant: str, case: str, sentence: str, runners: Runners) -> None:
    said = runners.run(BY_NAME[mutant], device, [case])[case]["message"]
    assert sentence in said.splitlines()
