"""Sampling at grid points, and changes of size by interpolation.

Grid samplers take the modes as numbers: interpolation 0 bilinear, 1 nearest, 2 bicubic; padding 0 zeros, 1 border,
2 reflection.
"""

from collections.abc import Iterator
from typing import TypeAlias

from ampcheck.samples.describe import Op, Sample, at, f, function, op, signed_unit, via

_PLACES = 3
"""A kernel may compute the places of a grid in its own dtype, where one is added to what may be small."""
Floats: TypeAlias = tuple[float, ...]
_INTERPOLATE = "torch.nn.functional.interpolate"


def _to_size(mode: str, *shape: int, size: tuple[int, ...], **options: object) -> Sample:
    return via(_INTERPOLATE, f(*shape), size=size, mode=mode, **options)


def _by_factor(mode: str, *shape: int, factor: tuple[float, ...], **options: object) -> Sample:
    return via(_INTERPOLATE, f(*shape), scale_factor=factor, mode=mode, **options)


def _nearest(name: str, mode: str) -> Iterator[Op]:
    """Yield the overloads of one, two and three dimensions."""
    for shape, size, factor, smaller in (
        ((1, 2, 3), (5,), (1.5,), at("smaller", f(2, 3, 7), (4,), 0.5)),
        ((1, 2, 3, 4), (5, 6), (1.5, 2.0), at("smaller", f(1, 2, 6, 8), (3, 6), 0.6, 0.9)),
        ((1, 2, 2, 3, 4), (3, 5, 6), (1.5, 1.5, 2.0), at("smaller", f(1, 1, 4, 6, 8), (2, 3, 6), 0.7, 0.6, 0.9)),
    ):
        overload = f"{name}{len(size)}d"
        resized = _to_size(mode, *shape, size=size), _by_factor(mode, *shape, factor=factor)
        yield op(overload, at("larger", f(*shape), size), smaller, *resized, also=(f"torch._C._nn.{overload}",))


def _interpolated(
    mode: str, shape: tuple[int, ...], size: tuple[int, ...], scales: Floats, factor: Floats, corners: Sample
) -> Op:
    """Return the overload of a mode. `scales`: its factors beside `size`. `factor`: those that decide the size."""
    overload = f"upsample_{mode}{len(size)}d"
    return op(
        overload,
        at("larger", f(*shape), size, False),
        corners,
        at("scaled", f(*shape), size, False, *scales),
        _to_size(mode, *shape, size=size),
        _by_factor(mode, *shape, factor=factor, align_corners=True),
        also=(f"torch._C._nn.{overload}",),
    )


def _antialiased(mode: str) -> Op:
    overload = f"_upsample_{mode}2d_aa"
    return op(
        overload,
        at("larger", f(1, 2, 3, 4), (5, 6), False),
        at("smaller", f(1, 2, 6, 8), (3, 5), True),
        at("scaled", f(1, 2, 6, 8), (3, 5), False, 0.6, 0.75),
        _to_size(mode, 1, 2, 6, 8, size=(3, 5), antialias=True),
        _by_factor(mode, 1, 2, 6, 8, factor=(0.5, 0.75), antialias=True),
        also=(f"torch._C._nn.{overload}",),
    )


_IMAGE = (1, 2, 3, 4), (5, 6), (1.5, 1.75), (1.5, 2.0), at("corners", f(1, 2, 6, 8), (3, 5), True)
_VOLUME = (
    (1, 2, 2, 3, 4),
    (3, 5, 6),
    (1.75, 1.75, 1.75),
    (1.5, 1.5, 2.0),
    at("corners", f(1, 1, 4, 6, 8), (2, 3, 6), True),
)
OPS = (
    function(
        "_grid_sampler_2d_cpu_fallback",
        at("bilinear", f(1, 2, 4, 5), signed_unit(1, 2, 3, 2), 0, 0, False),
        at("nearest", f(2, 1, 4, 5), signed_unit(2, 3, 2, 2), 1, 1, True),
        at("bicubic", f(1, 2, 4, 5), signed_unit(1, 2, 3, 2), 2, 2, False),
        passes=_PLACES,
    ),
    function(
        "grid_sampler",
        at("2d", f(1, 2, 4, 5), signed_unit(1, 2, 3, 2), 0, 0, False),
        at("3d", f(1, 2, 3, 4, 5), signed_unit(1, 2, 3, 2, 3), 0, 1, True),
        at("bicubic", f(1, 2, 4, 5), signed_unit(1, 2, 3, 2), 2, 2, False),
        at("empty", f(0, 2, 4, 5), signed_unit(0, 2, 3, 2), 1, 0, False),
        via(
            "torch.nn.functional.grid_sample",
            f(1, 2, 4, 5),
            signed_unit(1, 2, 3, 2),
            padding_mode="border",
            align_corners=True,
        ),
        passes=_PLACES,
    ),
    function(
        "grid_sampler_2d",
        at("bilinear", f(1, 2, 4, 5), signed_unit(1, 2, 3, 2), 0, 0, False),
        at("nearest", f(2, 1, 4, 5), signed_unit(2, 3, 2, 2), 1, 1, True),
        at("bicubic", f(1, 2, 4, 5), signed_unit(1, 2, 3, 2), 2, 2, False),
        passes=_PLACES,
    ),
    function(
        "grid_sampler_3d",
        at("bilinear", f(1, 2, 3, 4, 5), signed_unit(1, 2, 3, 2, 3), 0, 0, False),
        at("nearest", f(2, 1, 3, 4, 5), signed_unit(2, 2, 3, 2, 3), 1, 1, True),
        passes=_PLACES,
    ),
    _antialiased("bicubic"),
    _antialiased("bilinear"),
    *_nearest("_upsample_nearest_exact", "nearest-exact"),
    _interpolated("bicubic", *_IMAGE),
    _interpolated("bilinear", *_IMAGE),
    _interpolated("linear", (1, 2, 3), (5,), (1.5,), (1.5,), at("corners", f(2, 3, 7), (4,), True)),
    *_nearest("upsample_nearest", "nearest"),
    _interpolated("trilinear", *_VOLUME),
)
