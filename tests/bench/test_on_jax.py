"""Workloads on the jax device: overhead, inputs, eager and jitted variants and their precision checks."""

from importlib.util import find_spec

import pytest

from tests.cli_support import python

ON_JAX = """
import torch
import ampcheck.jax_device
from ampcheck.observe.closeness import relative_error
from ampcheck.bench.core.model import PRECISIONS, OverheadWorkload
from ampcheck.bench.core.prepare import make_inputs, make_module, prepare, reference
from ampcheck.bench.workloads import catalogue
from ampcheck.devices.jax import Jax
from tests.bench.test_precision_check import HALF, MM, check_precision, mlp, op, small_step
from tests.bench.test_workloads import OP, OVERFLOWING, STEP

for name, w in catalogue().items():
    if isinstance(w, OverheadWorkload):
        for kind, call in w.make("jax").items():
            out = call()
            assert out is None or out.device.type == "jax", (name, kind)
            assert not torch.is_autocast_enabled("jax")
for name in ("conv2d-nhwc", "sdpa-masked", "cross-entropy"):
    w = catalogue()[name]
    out = w.call(*make_inputs(w, "jax"))
    torch.testing.assert_close(out.cpu(), w.call(*make_inputs(w, "cpu")), rtol=1e-3, atol=1e-3)
assert make_module(catalogue()["lstm-step"], "jax").head.weight.device.type == "jax"

for workload in (OP, STEP):
    exact = reference(workload)
    for name, most in (("fp32", 1e-6), ("bf16", 2e-2), ("fp16", 2e-3), ("bf16-native", 2e-2)):
        for compiler in ("eager", "jit"):
            ready = prepare(workload, PRECISIONS[name], "jax", compiler)
            first = ready.output()
            assert relative_error(first, exact) < most, (workload.name, name, compiler)
            ready.call()
            assert torch.equal(ready.output(), first)
    assert "dot_general" in ready.jitted.lower(*ready.arguments).as_text()
ready = prepare(OVERFLOWING, PRECISIONS["fp16"], "jax", "jit")
assert len({ready.call().item() for _ in range(3)}) == 1

for workload, texts in (
    (MM, ("dot_general in fp32", "dot_general in bf16")),
    (small_step(mlp), ("", "dot_general in bf16")),
    (op("upcast", torch.exp, HALF), ("", "exponential in fp32 on bf16")),
):
    exact, base = reference(workload), None
    for name, text in zip(("fp32", "bf16"), texts):
        ready = prepare(workload, PRECISIONS[name], "jax", "jit")
        output = ready.output()
        base = output if base is None else base
        found = check_precision(ready, PRECISIONS[name], workload, Jax(), "jit", base, output, exact)
        assert not found.invalid and text in found.text, found
found = check_precision(prepare(MM, PRECISIONS["bf16"], "jax", "eager"), PRECISIONS["bf16"], MM, Jax(), "eager")
assert not found.invalid and "mm in bf16" in found.text, found
"""


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("jax") is None or find_spec("torchax") is None, reason="ampcheck[jax] is not here")
def test_workloads_on_jax() -> None:
    python("-c", ON_JAX, JAX_PLATFORMS="cpu")
