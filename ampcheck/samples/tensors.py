"""Tensors made from their descriptions.

Values are made on the CPU in float64 from a seed that depends on the description alone, so the same argument has the
same values on every device and in every dtype; then they are cast and handed to the device.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol
from zlib import crc32

import torch

from ampcheck.samples.describe import Sample, TensorArg, map_leaves
from ampcheck.samples.torch_private import disable_current_modes
from ampcheck.spec.torch_dtypes import DTYPES

Shape = tuple[int, ...]


def _normal(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def _unit(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return the open interval (0, 1), away from its ends."""
    return 0.05 + 0.9 * torch.rand(shape, dtype=torch.float64, generator=generator)


def _signed_unit(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return the open interval (-1, 1), away from its ends."""
    return 2 * _unit(shape, generator) - 1


def _positive(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return values from 0.5 to 2.5."""
    return 0.5 + 2 * torch.rand(shape, dtype=torch.float64, generator=generator)


def _large(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return values up to 18, one of which is there; float16 overflows in its power, or in a product of a few."""
    values = _normal(shape, generator)
    return values * (18 / values.abs().max()) if values.numel() else values


def _large_positive(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return values from 0.5 to 18, one of which is 18."""
    return (_large(shape, generator).abs()).clamp(min=0.5)


def _small(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return values of about 1 in 128: where a square is lost beside 1 in bfloat16."""
    return _normal(shape, generator) / 128


def _sign(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return -1 or 1."""
    return _normal(shape, generator).sign()


def _spd(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return symmetric positive definite matrices, well conditioned."""
    base = _normal(shape, generator)
    return base @ base.mT / shape[-1] + 2 * torch.eye(shape[-1], dtype=torch.float64)


def _regular(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return square or tall matrices, well conditioned: a dominant diagonal."""
    return 0.3 * _normal(shape, generator) + 2 * torch.eye(shape[-2], shape[-1], dtype=torch.float64)


def _lower(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return lower triangular matrices, well conditioned."""
    return _regular(shape, generator).tril()


def _upper(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return upper triangular matrices, well conditioned."""
    return _regular(shape, generator).triu()


def _log_probability(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return log probabilities over the last dimension."""
    return _normal(shape, generator).log_softmax(-1)


def _distinct(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Return values that stay distinct in bfloat16, in random order: for arg-max and for sorts."""
    count = int(torch.Size(shape).numel())
    order = torch.randperm(count, generator=generator)
    return ((order.double() - count // 2) / 8).reshape(shape)


def _zero(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def _one(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64)


FILLS: dict[str, Callable[[Shape, torch.Generator], torch.Tensor]] = {
    made.__name__.removeprefix("_"): made
    for made in (
        *(_normal, _unit, _signed_unit, _positive, _large, _large_positive, _small, _sign),
        *(_spd, _regular, _lower, _upper, _log_probability, _distinct, _zero, _one),
    )
}
"""How floating values are made; `ampcheck.samples.describe.TensorArg.fill` names one. "integers", "arange" and "pivots"
are for integers: uniform in [0, high), 0 … n-1, and LU pivots 1 … n."""


@lru_cache(maxsize=4096)
@disable_current_modes()  # what a virtual device is entered with would make a fake tensor, which others would get
def host_values(arg: TensorArg, position: int) -> torch.Tensor:
    """Return an argument's values on the CPU: float64, or its own dtype if that is not floating. Do not change them.

    `position` is the argument's place among the call's tensors, so that equal descriptions get different values.
    """
    generator = torch.Generator().manual_seed(crc32(repr((arg.shape, arg.fill, arg.seed, position)).encode()))
    own = DTYPES[arg.dtype] if arg.dtype else torch.float64
    if arg.fill == "integers":
        return torch.randint(arg.high, arg.shape, generator=generator).to(own)
    if arg.fill == "arange":
        return torch.arange(torch.Size(arg.shape).numel()).reshape(arg.shape).to(own)
    if arg.fill == "pivots":
        return torch.arange(1, arg.shape[-1] + 1).expand(arg.shape).to(own)
    if own.is_complex:
        return torch.complex(_normal(arg.shape, generator), _normal(arg.shape, generator)).to(own)
    return FILLS[arg.fill](arg.shape, generator).to(own)


def host_tensor(arg: TensorArg, dtype: str, position: int) -> torch.Tensor:
    """Return a fresh CPU tensor of an argument in a dtype."""
    wanted = DTYPES[dtype]
    values = host_values(arg, position)
    if wanted.is_floating_point or values.dtype == wanted:
        return values.to(wanted, copy=True)
    # A floating argument asked for as integer or bool: small whole numbers, so that no value is lost.
    return (values * 3).round().to(wanted)


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of the same values that is not contiguous: transposed, or with gaps where it has one dimension."""
    if tensor.dim() > 1:
        return tensor.transpose(-2, -1).clone(memory_format=torch.contiguous_format).transpose(-2, -1)
    return torch.stack([tensor, tensor], -1)[..., 0]


class MakesTensors(Protocol):
    """A device, as far as `build` needs it."""

    def tensor(self, arg: TensorArg, dtype: str, position: int) -> torch.Tensor:
        """Make a fresh tensor for an argument."""


def build(sample: Sample, dtypes: Sequence[str], device: MakesTensors) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a sample's arguments on a device; `dtypes` has one entry per argument whose dtype the case decides."""
    remaining = iter(dtypes)
    position = -1

    def make(arg: TensorArg) -> torch.Tensor:
        nonlocal position
        position += 1
        dtype = arg.dtype or next(remaining)
        made = device.tensor(arg, dtype, position)
        return _strided(made) if arg.strided else made

    args = map_leaves(sample.args, make)
    kwargs = {name: map_leaves(value, make) for name, value in sample.kwargs.items()}
    return args, kwargs
