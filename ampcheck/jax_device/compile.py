"""`torch.compile(model, backend="jax")`: the graphs of forward and backward run as XLA programs.

Dynamo captures the graph and AOTAutograd takes it apart into a forward and a backward graph without mutation; each is
run by `jit`. An entry point tells torch the name; where the package is not installed, importing this module does.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from importlib.metadata import entry_points
from operator import getitem

import torch
from functorch.compile import make_boxed_func  # type: ignore[import-untyped]

from ampcheck.jax_device import torch_private
from ampcheck.jax_device.annotations import Function, Tree
from ampcheck.jax_device.jit.transform import jit
from ampcheck.register.torch_private import dispatch_modes

__all__ = ["backend"]

# Between two graphs the device's kernels run as they are: Dynamo would otherwise compile their Python code.
for _name in ("ampcheck.jax_device", "ampcheck.register", "jax", "jaxlib"):
    torch_private.skip_package(_name)


def _compiler(graph: torch.fx.GraphModule, _: Sequence[object]) -> Function:
    """Return a function of a graph's inputs that runs it as one program, compiled at its first call."""
    forward = graph.forward

    def run(*inputs: Tree) -> Tree:
        return forward(*inputs)

    program = jit(run)

    def call(*inputs: Tree) -> Tree:
        # The graph has its casts, and its backward is another graph. AOTAutograd looks at the first run by a mode.
        unseen = torch_private.disable_current_modes() if dispatch_modes() else nullcontext()
        with unseen, torch_private.DisableAutocast(), torch.no_grad():
            return program(*inputs)

    call.program = program  # type: ignore[attr-defined]
    boxed: Function = make_boxed_func(call)
    return boxed


def _partition(joint: torch.fx.GraphModule, inputs: Tree, **kwargs: Tree) -> Tree:
    """Split the joint graph: backward computes again what activation checkpointing says, and no random numbers.

    PyTorch would save the state of its own generators instead, of which the device has none.
    """
    for node in joint.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            for drawn in (node, *(user for user in node.users if user.target is getitem)):
                drawn.meta.pop("recompute", None)
    return torch_private.default_partition(joint, inputs, **kwargs)


_aot = torch_private.aot_autograd(fw_compiler=_compiler, bw_compiler=_compiler, partition_fn=_partition)


def backend(graph: torch.fx.GraphModule, inputs: Sequence[object], **_: object) -> Function:
    """Compile a graph for `torch.compile`. `inputs` are fake tensors and numbers. Options are not used."""
    compiled: Function = _aot(graph, inputs)
    return compiled


if not entry_points(group="torch_dynamo_backends", name="jax"):  # torch registers what it loads, and refuses a second
    torch_private.register_backend(backend, name="jax")
