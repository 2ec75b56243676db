"""Arguments of a jitted step whose sizes vary, padded to a few sizes, each of which is one program."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.jax_device.annotations import Args, Function, Kwargs, Tree


@dataclass(frozen=True)
class Bucket:
    """The sizes that a dimension of an argument is padded to, at its end, with `value`.

    Raises ValueError where `sizes` is empty or holds what is no positive integer.
    """

    sizes: tuple[int, ...]
    dim: int = 0
    value: float = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(sorted(self.sizes)))
        if not self.sizes or any(type(size) is not int or size < 1 for size in self.sizes):
            raise ValueError(f"the sizes of a bucket are positive integers, at least one; got {list(self.sizes)}")

    def pad(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """Return the tensor on the jax device, padded to the least size that takes it; itself if it has that size."""
        if not -tensor.ndim <= self.dim < tensor.ndim:
            raise ValueError(f"buckets pad dimension {self.dim} of {name}, which has shape {list(tensor.shape)}")
        if tensor.requires_grad:
            raise ValueError(f"buckets pad {name}, which requires grad; pass tensor.detach(), or pad it in the step")
        size = tensor.shape[self.dim]
        bucket = next((each for each in self.sizes if each >= size), None)
        if bucket is None:
            largest = self.sizes[-1]
            raise ValueError(f"dimension {self.dim} of {name} has size {size}, its largest bucket {largest}; give more")
        if bucket == size:
            return tensor.to("jax")
        # On the host: a program that pads would be compiled for each size, which is what buckets are to spare.
        after = [0, 0] * (tensor.ndim - 1 - self.dim % tensor.ndim)
        return torch.nn.functional.pad(tensor.cpu(), (*after, 0, bucket - size), value=self.value).to("jax")


Buckets = Mapping[str, Bucket | Iterable[Bucket]]
"""By the name of a parameter, or `parameter.key` where the argument is a dictionary."""


class Padding:
    """What pads the arguments of one function.

    Raises TypeError for what are no buckets, ValueError for a name that the function has no parameter of.
    """

    def __init__(self, function: Function, buckets: Buckets) -> None:
        self.signature = inspect.signature(function)
        self.buckets = {
            name: (each,) if isinstance(each, Bucket) else tuple(each) for name, each in dict(buckets).items()
        }
        kinds = {p.kind: p.name for p in self.signature.parameters.values()}
        self.rest = kinds.get(inspect.Parameter.VAR_KEYWORD)
        for name, given in self.buckets.items():
            if not given or not all(isinstance(each, Bucket) for each in given):
                raise TypeError(f"buckets of {name!r} are no Bucket: {given!r}")
            if not self.rest and name.split(".")[0] not in self.signature.parameters:
                raise ValueError(
                    f"buckets name {name!r}; the parameters are {', '.join(self.signature.parameters) or 'none'}"
                )

    def around(self, function: Function) -> Function:
        """Return the function with padded arguments. It raises RuntimeError if it wrote one that is a padded copy."""

        def bucketed(*args: Tree, **kwargs: Tree) -> Tree:
            args, kwargs, made = self(args, kwargs)
            out = function(*args, **kwargs)
            for name, (tensor, version) in made.items():
                if tensor._version != version:
                    raise RuntimeError(f"the step wrote {name}, of which it has a padded copy: the write is lost")
            return out

        return bucketed

    def __call__(self, args: Args, kwargs: Kwargs) -> tuple[Any, Any, dict[str, tuple[torch.Tensor, int]]]:
        """Pad the arguments; return them and the name and version of each padded tensor. A None stays None."""
        bound = self.signature.bind(*args, **kwargs)
        made: dict[str, tuple[torch.Tensor, int]] = {}
        for name, buckets in self.buckets.items():
            parameter, *keys = name.split(".", 1)
            holder = bound.arguments
            if self.rest and parameter not in self.signature.parameters:
                holder = bound.arguments.setdefault(self.rest, {})
            if holder.get(parameter) is None:
                continue
            for key in keys:
                if not isinstance(holder[parameter], dict) or key not in holder[parameter]:
                    raise TypeError(f"buckets name {name!r}, and {parameter} is no dictionary with that key")
                holder[parameter] = dict(holder[parameter])
                holder, parameter = holder[parameter], key
            tensor = given = holder[parameter]
            if not isinstance(given, torch.Tensor):
                raise TypeError(f"buckets pad {name}, which is no tensor but a {type(given).__name__}")
            for bucket in buckets:
                tensor = bucket.pad(tensor, name)
            if tensor is not given:
                holder[parameter] = tensor
                if not tensor.is_inference():  # which has no version
                    made[name] = tensor, tensor._version
        return bound.args, bound.kwargs, made
