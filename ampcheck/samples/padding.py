"""Padding with values of the input."""

from ampcheck.samples.describe import Op, Sample, at, f, op, via


def _padded(overload: str, mode: str, shape: tuple[int, ...], pad: tuple[int, ...], other: Sample) -> Op:
    """Return the samples of an overload. `mode`: its name in functional.pad. `other`: the sample after the batched."""
    return op(
        overload,
        at("batched", f(*shape), pad),
        other,
        at("empty", f(0, *shape[1:]), (1,) * len(pad)),
        via("torch.nn.functional.pad", f(*shape), pad, mode=mode),
        also=(f"torch._C._nn.{overload}",),
    )


OPS = (
    _padded("reflection_pad1d", "reflect", (2, 3, 4), (1, 2), at("unbatched", f(3, 4), (2, 0))),
    _padded("reflection_pad2d", "reflect", (1, 2, 3, 4), (1, 2, 0, 1), at("unbatched", f(2, 3, 4), (2, 0, 1, 1))),
    _padded("replication_pad1d", "replicate", (2, 3, 4), (1, 2), at("unbatched", f(3, 4), (5, 0))),
    _padded("replication_pad2d", "replicate", (1, 2, 3, 4), (1, 2, 0, 1), at("cropped", f(2, 3, 4), (-1, 5, 1, -1))),
    _padded(
        "replication_pad3d",
        "replicate",
        (1, 2, 2, 3, 4),
        (1, 2, 0, 1, 2, 0),
        at("unbatched", f(2, 2, 3, 4), (1, 0, 1, 0, 0, 3)),
    ),
)
