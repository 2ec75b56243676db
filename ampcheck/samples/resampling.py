"""Sampling at grid points, and changes of size by interpolation.

Grid samplers take the modes as numbers: interpolation 0 bilinear, 1 nearest, 2 bicubic; padding 0 zeros, 1 border,
2 reflection.
"""

from typing import TypeAlias

from ampcheck.samples.describe import Sample, Samples, at, f, function, private, signed_unit, via

_PLACES = 3
"""A kernel may compute the places of a grid in its own dtype, where one is added to what may be small."""
Floats: TypeAlias = tuple[float, ...]
_INTERPOLATE = "torch.nn.functional.interpolate"


def _to_size(mode: str, *shape: int, size: tuple[int, ...], **options: object) -> Sample:
    return via(_INTERPOLATE, f(*shape), size=size, mode=mode, **options)


def _by_factor(mode: str, *shape: int, factor: tuple[float, ...], **options: object) -> Sample:
    return via(_INTERPOLATE, f(*shape), scale_factor=factor, mode=mode, **options)


def _nearest(name: str, mode: str) -> dict[str, Samples]:
    """Return the overloads of one, two and three dimensions."""
    return {
        f"{name}{len(size)}d": private(
            at("larger", f(*shape), size),
            smaller,
            _to_size(mode, *shape, size=size),
            _by_factor(mode, *shape, factor=factor),
        )
        for shape, size, factor, smaller in (
            ((1, 2, 3), (5,), (1.5,), at("smaller", f(2, 3, 7), (4,), 0.5)),
            ((1, 2, 3, 4), (5, 6), (1.5, 2.0), at("smaller", f(1, 2, 6, 8), (3, 6), 0.6, 0.9)),
            ((1, 2, 2, 3, 4), (3, 5, 6), (1.5, 1.5, 2.0), at("smaller", f(1, 1, 4, 6, 8), (2, 3, 6), 0.7, 0.6, 0.9)),
        )
    }


def _interpolated(
    mode: str, shape: tuple[int, ...], size: tuple[int, ...], scales: Floats, factor: Floats, corners: Sample
) -> Samples:
    """Return the overload of a mode. `scales`: its factors beside `size`. `factor`: those that decide the size."""
    return private(
        at("larger", f(*shape), size, False),
        corners,
        at("scaled", f(*shape), size, False, *scales),
        _to_size(mode, *shape, size=size),
        _by_factor(mode, *shape, factor=factor, align_corners=True),
    )


def _antialiased(mode: str) -> Samples:
    return private(
        at("larger", f(1, 2, 3, 4), (5, 6), False),
        at("smaller", f(1, 2, 6, 8), (3, 5), True),
        at("scaled", f(1, 2, 6, 8), (3, 5), False, 0.6, 0.75),
        _to_size(mode, 1, 2, 6, 8, size=(3, 5), antialias=True),
        _by_factor(mode, 1, 2, 6, 8, factor=(0.5, 0.75), antialias=True),
    )


_IMAGE = (1, 2, 3, 4), (5, 6), (1.5, 1.75), (1.5, 2.0), at("corners", f(1, 2, 6, 8), (3, 5), True)
_VOLUME = (1, 2, 2, 3, 4), (3, 5, 6), (1.75,) * 3, (1.5, 1.5, 2.0), at("corners", f(1, 1, 4, 6, 8), (2, 3, 6), True)
_GRID = function(
    at("bilinear", f(1, 2, 4, 5), signed_unit(1, 2, 3, 2), 0, 0, False),
    at("nearest", f(2, 1, 4, 5), signed_unit(2, 3, 2, 2), 1, 1, True),
    at("bicubic", f(1, 2, 4, 5), signed_unit(1, 2, 3, 2), 2, 2, False),
    passes=_PLACES,
)
OPS = {
    "_grid_sampler_2d_cpu_fallback": _GRID,
    "grid_sampler": function(
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
    "grid_sampler_2d": _GRID,
    "grid_sampler_3d": function(
        at("bilinear", f(1, 2, 3, 4, 5), signed_unit(1, 2, 3, 2, 3), 0, 0, False),
        at("nearest", f(2, 1, 3, 4, 5), signed_unit(2, 2, 3, 2, 3), 1, 1, True),
        passes=_PLACES,
    ),
    "_upsample_bicubic2d_aa": _antialiased("bicubic"),
    "_upsample_bilinear2d_aa": _antialiased("bilinear"),
    **_nearest("_upsample_nearest_exact", "nearest-exact"),
    "upsample_bicubic2d": _interpolated("bicubic", *_IMAGE),
    "upsample_bilinear2d": _interpolated("bilinear", *_IMAGE),
    "upsample_linear1d": _interpolated(
        "linear", (1, 2, 3), (5,), (1.5,), (1.5,), at("corners", f(2, 3, 7), (4,), True)
    ),
    **_nearest("upsample_nearest", "nearest"),
    "upsample_trilinear3d": _interpolated("trilinear", *_VOLUME),
}
