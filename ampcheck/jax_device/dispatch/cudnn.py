"""cuDNN's own overloads of convolution, made of the general one, whose arguments they take in another order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ampcheck.jax_device.annotations import Kernel, Tree
from ampcheck.jax_device.dispatch.kernels import computed
from ampcheck.jax_device.dispatch.special import kernel


def by_convolution(convolve: Kernel) -> dict[str, Kernel]:
    """Return a kernel of each overload, made of a kernel of `convolution`; what follows `groups` chooses algorithms."""

    def plain(
        self: torch.Tensor, weight: torch.Tensor, padding: Sequence[int], stride: Sequence[int], *given: Tree
    ) -> torch.Tensor:
        out: torch.Tensor = convolve(self, weight, None, stride, padding, given[0], False, [0] * len(stride), given[1])
        return out

    def transposed(
        self: torch.Tensor, weight: torch.Tensor, padding: Sequence[int], output_padding: Sequence[int], *given: Tree
    ) -> torch.Tensor:
        stride, dilation, groups = given[:3]
        out: torch.Tensor = convolve(self, weight, None, stride, padding, dilation, True, output_padding, groups)
        return out

    def relu(
        self: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: Sequence[int], *given: Tree
    ) -> torch.Tensor:
        padding, dilation, groups = given
        out = convolve(self, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)
        return torch.relu(out)

    def add_relu(
        self: torch.Tensor,
        weight: torch.Tensor,
        z: torch.Tensor,
        alpha: complex | None,
        bias: torch.Tensor | None,
        stride: Sequence[int],
        *given: Tree,
    ) -> torch.Tensor:
        padding, dilation, groups = given
        out = convolve(self, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)
        return torch.relu(torch.add(out, z, alpha=1 if alpha is None else alpha))

    return {
        "cudnn_convolution": plain,
        "cudnn_convolution_transpose": transposed,
        "cudnn_convolution_relu": relu,
        "cudnn_convolution_add_relu": add_relu,
    }


def _convolution(*args: Tree) -> Tree:
    return computed("convolution_overrideable")(*args)


for _name, _kernel in by_convolution(_convolution).items():
    kernel(_name)(_kernel)
