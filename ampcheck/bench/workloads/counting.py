"""Count what a call must compute and move at least: floating point operations, and bytes.

Only products (matrix products, convolutions, attention) are counted as operations, as `FlopCounterMode` does: a
multiplication and an addition for each pair of numbers multiplied. Bytes are the inputs read once and the output
written once, which is what a fused kernel with an endless cache would move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch

from ampcheck.bench.core.model import Spec


def product(m: int, n: int, k: int, batch: int = 1) -> int:
    """Operations of `batch` products of an m × k and a k × n matrix."""
    return 2 * batch * m * n * k


def convolution(weight: tuple[int, ...], positions: tuple[int, ...], batch: int) -> int:
    """Operations of a convolution.

    `weight`: its shape. `positions`: the spatial shape that the kernel is laid on: the output's, or the input's where
    the convolution is transposed.
    """
    return 2 * batch * prod(weight) * prod(positions)


def traffic(inputs: Sequence[Spec], output: tuple[int, ...] = (), *, weights: int = 0) -> Callable[[int], float]:
    """Bytes to move at least, given the bytes of an element of float32 specs, of the output and of module weights.

    `weights`: how many numbers the module has. A spec of another dtype has the bytes of that dtype, and so has the
    output where no input is float32.
    """
    flexible = sum(prod(spec.shape) for spec in inputs if spec.dtype == torch.float32)
    fixed = sum(prod(spec.shape) * spec.dtype.itemsize for spec in inputs if spec.dtype != torch.float32)
    halves = not flexible and not weights
    written = prod(output)
    narrow = min((spec.dtype.itemsize for spec in inputs if spec.dtype.is_floating_point), default=0)

    def moved(element: int) -> float:
        return (flexible + weights) * element + fixed + written * (narrow if halves else element)

    return moved
