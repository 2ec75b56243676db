"""Padding with values of the input."""

from ampcheck.samples.describe import Sample, Samples, at, f, private, via


def _padded(mode: str, shape: tuple[int, ...], pad: tuple[int, ...], other: Sample) -> Samples:
    """Return the samples of an overload. `mode`: its name in functional.pad. `other`: the sample after the batched."""
    empty = at("empty", f(0, *shape[1:]), (1,) * len(pad))
    return private(
        at("batched", f(*shape), pad), other, empty, via("torch.nn.functional.pad", f(*shape), pad, mode=mode)
    )


OPS = {
    "reflection_pad1d": _padded("reflect", (2, 3, 4), (1, 2), at("unbatched", f(3, 4), (2, 0))),
    "reflection_pad2d": _padded("reflect", (1, 2, 3, 4), (1, 2, 0, 1), at("unbatched", f(2, 3, 4), (2, 0, 1, 1))),
    "replication_pad1d": _padded("replicate", (2, 3, 4), (1, 2), at("unbatched", f(3, 4), (5, 0))),
    "replication_pad2d": _padded("replicate", (1, 2, 3, 4), (1, 2, 0, 1), at("cropped", f(2, 3, 4), (-1, 5, 1, -1))),
    "replication_pad3d": _padded(
        "replicate", (1, 2, 2, 3, 4), (1, 2, 0, 1, 2, 0), at("unbatched", f(2, 2, 3, 4), (1, 0, 1, 0, 0, 3))
    ),
}
