"""What scenarios of gradients share: copies of leaves, backward passes, and custom functions of `torch.autograd`."""

from collections.abc import Callable, Sequence

import torch

from ampcheck.checks.amp import Amp


def copy_of(leaf: torch.Tensor) -> torch.Tensor:
    """Return a leaf with the values of another one, and without its gradient."""
    return leaf.detach().clone().requires_grad_()


def copies_of(*leaves: torch.Tensor) -> list[torch.Tensor]:
    """Return a copy of each leaf; see `copy_of`."""
    return [copy_of(leaf) for leaf in leaves]


def backward(*results: torch.Tensor) -> None:
    """Run the backward pass of the sum of squares of each result, which is taken in float32."""
    for result in results:
        result.float().pow(2).sum().backward()


def assert_same_gradients(
    amp: Amp, names: Sequence[str], leaves: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
) -> None:
    """Note gradients that differ from those of other leaves in a bit."""
    for name, leaf, other in zip(names, leaves, others, strict=True):
        amp.assert_identical(f"gradient of {name}", leaf.grad, other.grad)


def custom_function(
    device_type: str,
    forward: Callable[..., object],
    backward: Callable[..., object] | None = None,
    cast_inputs: torch.dtype | None = None,
    **members: object,
) -> type[torch.autograd.Function]:
    """Return a torch.autograd.Function of two passes, which custom_fwd and custom_bwd decorate."""
    options = {} if cast_inputs is None else {"cast_inputs": cast_inputs}
    decorated = torch.amp.custom_fwd(device_type=device_type, **options)(forward)
    return plain_function(decorated, backward and torch.amp.custom_bwd(device_type=device_type)(backward), **members)


def plain_function(
    forward: Callable[..., object], backward: Callable[..., object] | None = None, **members: object
) -> type[torch.autograd.Function]:
    """Return a torch.autograd.Function of two passes."""
    passes = {"forward": forward, **({"backward": backward} if backward else {})}
    held = {name: staticmethod(each) for name, each in passes.items()}
    return type("Function", (torch.autograd.Function,), {**held, **members})
