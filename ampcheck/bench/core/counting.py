"""Count what a call must compute and move at least: floating point operations, and bytes.

Only products (matrix products, convolutions, attention) are counted as operations: a multiplication and an addition for
each pair of numbers multiplied, forward and backward. A workload runs on meta tensors to be counted, which takes
milliseconds whatever its size.
"""

from functools import cache

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ampcheck.bench.core.model import OpWorkload, StepWorkload, Workload
from ampcheck.bench.core.prepare import make_inputs, make_module


@cache
def flops(workload: Workload) -> float:
    """Return the floating point operations of one call, 0 where nobody counts them.

    Attention is taken apart into its products, of which `OpWorkload.needed` says how many a kernel can leave out.
    """
    if not isinstance(workload, (OpWorkload, StepWorkload)) or not workload.inputs:
        return 0
    inputs, modules = _made(workload, None)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        if isinstance(workload, StepWorkload):
            workload.loss(modules[0](*inputs[:-1]), inputs[-1]).backward()
            return float(counter.get_total_flops())
        with torch.no_grad():
            workload.call(*modules, *inputs)
    return float(counter.get_total_flops() * workload.needed)


@cache
def moved(workload: Workload, element: int) -> float:
    """Return the bytes that one call must read and write, 0 where nobody counts them.

    These are an op's inputs and parameters read once and its output written once, which is what a fused kernel with an
    endless cache would move; of a step the parameters read and written once, and the data.

    Args:
        element: bytes of an element of what is float32 by default: 4, or 2 for a lower precision.
    """
    if not isinstance(workload, (OpWorkload, StepWorkload)) or not workload.inputs:
        return 0
    inputs, modules = _made(workload, None if element == 4 else torch.bfloat16)
    parameters = [parameter for module in modules for parameter in module.parameters()]
    if isinstance(workload, StepWorkload):
        there = [*(tensor for tensor in inputs if tensor.is_floating_point()), *parameters, *parameters]
    elif workload.view:
        return 0
    else:
        with torch.no_grad():
            there = [*inputs, *parameters, workload.call(*modules, *inputs)]
    return sum(tensor.nbytes for tensor in there)


def _made(
    workload: OpWorkload | StepWorkload, convert: torch.dtype | None
) -> tuple[list[torch.Tensor], list[nn.Module]]:
    """Return the inputs and the modules of a call, on the device "meta"."""
    module = make_module(workload, "meta", convert)
    return make_inputs(workload, "meta", convert), [] if module is None else [module]
