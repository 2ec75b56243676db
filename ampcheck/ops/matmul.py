"""Matrix products."""

from ampcheck.ops.describe import at, f, op, via

OPS = (
    op("mm", at("2d", f(3, 4), f(4, 5)), at("empty", f(0, 4), f(4, 5)), also=("torch.mm", "torch.Tensor.mm")),
    op(
        "matmul",
        at("2d", f(3, 4), f(4, 5)),
        at("broadcast", f(2, 1, 3, 4), f(5, 4, 2)),
        also=("torch.matmul", "torch.Tensor.matmul", "operator.matmul", "torch.linalg.matmul"),
    ),
    op(
        "linear",
        at("bias", f(2, 3), f(4, 3), f(4)),
        at("nobias", f(2, 3), f(4, 3)),
        via("torch.nn.functional.linear", f(2, 3), f(4, 3), bias=f(4)),
    ),
)
