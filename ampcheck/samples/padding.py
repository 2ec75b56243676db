"""Padding with values of the input."""

from ampcheck.samples.describe import at, f, op, via

OPS = (
    op(
        "reflection_pad1d",
        at("batched", f(2, 3, 4), (1, 2)),
        at("unbatched", f(3, 4), (2, 0)),
        at("empty", f(0, 3, 4), (1, 1)),
        via("torch.nn.functional.pad", f(2, 3, 4), (1, 2), mode="reflect"),
        also=("torch._C._nn.reflection_pad1d",),
    ),
    op(
        "reflection_pad2d",
        at("batched", f(1, 2, 3, 4), (1, 2, 0, 1)),
        at("unbatched", f(2, 3, 4), (2, 0, 1, 1)),
        at("empty", f(0, 2, 3, 4), (1, 1, 1, 1)),
        via("torch.nn.functional.pad", f(1, 2, 3, 4), (1, 2, 0, 1), mode="reflect"),
        also=("torch._C._nn.reflection_pad2d",),
    ),
    op(
        "replication_pad1d",
        at("batched", f(2, 3, 4), (1, 2)),
        at("unbatched", f(3, 4), (5, 0)),
        at("empty", f(0, 3, 4), (1, 1)),
        via("torch.nn.functional.pad", f(2, 3, 4), (1, 2), mode="replicate"),
        also=("torch._C._nn.replication_pad1d",),
    ),
    op(
        "replication_pad2d",
        at("batched", f(1, 2, 3, 4), (1, 2, 0, 1)),
        at("cropped", f(2, 3, 4), (-1, 5, 1, -1)),
        at("empty", f(0, 2, 3, 4), (1, 1, 1, 1)),
        via("torch.nn.functional.pad", f(1, 2, 3, 4), (1, 2, 0, 1), mode="replicate"),
        also=("torch._C._nn.replication_pad2d",),
    ),
    op(
        "replication_pad3d",
        at("batched", f(1, 2, 2, 3, 4), (1, 2, 0, 1, 2, 0)),
        at("unbatched", f(2, 2, 3, 4), (1, 0, 1, 0, 0, 3)),
        at("empty", f(0, 2, 2, 3, 4), (1, 1, 1, 1, 1, 1)),
        via("torch.nn.functional.pad", f(1, 2, 2, 3, 4), (1, 2, 0, 1, 2, 0), mode="replicate"),
        also=("torch._C._nn.replication_pad3d",),
    ),
)
