"""Convolutions in both memory formats, and transposed ones. One dimension has one format only."""

from collections.abc import Callable
from functools import partial
from typing import Unpack

import torch
from torch.nn import functional as F

from ampcheck.bench.core.model import OpWorkload, Spec, Workload, WorkloadOptions

Shape = tuple[int, ...]


def _conv(
    name: str,
    function: Callable[..., torch.Tensor],
    x: Shape,
    weight: Shape,
    *,
    stride: int = 1,
    padding: int = 1,
    channels_last: bool = False,
    **more: Unpack[WorkloadOptions],
) -> OpWorkload:
    """Make a convolution without bias; transposed where the function is."""
    more["fp16_on_cpu"] = False
    inputs = (Spec(x, channels_last=channels_last), Spec(weight, channels_last=channels_last))
    return OpWorkload(
        name=name,
        family="conv",
        policy="downcast",
        inputs=inputs,
        call=partial(function, stride=stride, padding=padding),
        samples=x[0],
        **more,
    )


_2D: tuple[Shape, Shape] = ((8, 64, 28, 28), (64, 64, 3, 3))
_3D: tuple[Shape, Shape] = ((2, 16, 8, 28, 28), (32, 16, 3, 3, 3))
_UP: tuple[Shape, Shape] = ((8, 64, 14, 14), (64, 32, 4, 4))
_WIDE: tuple[Shape, Shape] = ((64, 256, 56, 56), (256, 256, 3, 3))

WORKLOADS: tuple[Workload, ...] = (
    _conv("conv1d", F.conv1d, (8, 64, 512), (128, 64, 3)),
    _conv("conv2d", F.conv2d, *_2D, quick=True),
    _conv("conv2d-nhwc", F.conv2d, *_2D, channels_last=True),
    _conv("conv2d-wide", F.conv2d, *_WIDE, heavy=True),
    _conv("conv2d-wide-nhwc", F.conv2d, *_WIDE, channels_last=True, heavy=True, quick=True),
    _conv("conv3d", F.conv3d, *_3D),
    _conv("conv3d-ndhwc", F.conv3d, *_3D, channels_last=True),
    _conv("conv-transpose2d", F.conv_transpose2d, *_UP, stride=2),
    _conv("conv-transpose2d-nhwc", F.conv_transpose2d, *_UP, stride=2, channels_last=True),
)
