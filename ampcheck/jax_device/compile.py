"""`torch.compile(model, backend="jax")`: the graphs of forward and backward run as XLA programs.

Dynamo captures the graph and AOTAutograd takes it apart into a forward and a backward graph without mutation; each is
run by `jit`. Importing this module registers the backend; by the entry point `torch_dynamo_backends` its name is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from functorch.compile import make_boxed_func  # type: ignore[import-untyped]
from torch._C import _len_torch_dispatch_stack
from torch._dynamo import register_backend, trace_rules
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition
from torch.utils._python_dispatch import _disable_current_modes

from ampcheck.jax_device.jit.transform import jit

__all__ = ["backend"]

# Between two graphs the device's kernels run as they are: Dynamo would otherwise compile their Python code.
for _name in ("ampcheck.jax_device", "ampcheck.register", "jax", "jaxlib"):
    trace_rules.add(_name)


def _compiler(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    """A function of a graph's inputs that runs it as one program, compiled at the first call with inputs of a kind."""
    forward = graph.forward

    def run(*inputs: Any) -> Any:
        return forward(*inputs)

    program = jit(run)

    def call(*inputs: Any) -> Any:
        # The graph has its casts, and its backward is another graph. AOTAutograd looks at the first run by a mode.
        unseen = _disable_current_modes() if _len_torch_dispatch_stack() else nullcontext()
        with unseen, torch._C._DisableAutocast(), torch.no_grad():
            return program(*inputs)

    call.program = program  # type: ignore[attr-defined]
    boxed: Callable[..., Any] = make_boxed_func(call)
    return boxed


# default_partition: nothing that forward computed is computed again in backward, so that random masks are the same.
_aot = aot_autograd(fw_compiler=_compiler, bw_compiler=_compiler, partition_fn=default_partition)


@register_backend(name="jax")
def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
    """The backend for `torch.compile`. `inputs` are fake tensors and numbers. Options are not used."""
    compiled: Callable[..., Any] = _aot(graph, inputs)
    return compiled
