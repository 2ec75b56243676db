"""Element-wise functions."""

from ampcheck.samples.describe import Op, at, f, functional, method, op, positive, via


def _unary(name: str, fill: str, *aliases: str) -> Op:
    """Return a function of one tensor, `torch.<name>` and a method; `aliases` are its other paths."""
    return op(
        name,
        at("2d", f(3, 4, fill=fill)),
        at("large", f(60, 70, fill=fill)),
        at("zerodim", f(fill=fill)),
        at("empty", f(0, 3, fill=fill)),
        also=(f"torch.{name}", f"torch.Tensor.{name}", *aliases),
    )


OPS = (
    _unary("acos", "signed_unit", "torch.arccos", "torch.Tensor.arccos"),
    _unary("asin", "signed_unit", "torch.arcsin", "torch.Tensor.arcsin"),
    _unary("cosh", "normal"),
    _unary("erfinv", "signed_unit", "torch.special.erfinv"),
    _unary("exp", "normal"),
    _unary("expm1", "normal", "torch.special.expm1"),
    _unary("log", "positive"),
    _unary("log10", "positive"),
    _unary("log1p", "positive", "torch.special.log1p"),
    _unary("log2", "positive"),
    _unary("rsqrt", "positive"),
    _unary("sinh", "normal"),
    _unary("tan", "signed_unit"),
    method(
        "reciprocal",
        at("2d", positive(3, 4)),
        at("zerodim", positive()),
        at("empty", positive(0, 3)),
        via("torch.Tensor.__rtruediv__", positive(3, 4), 3.0),
        via("operator.truediv", 3.0, positive(3, 4)),
    ),
    functional("softplus", at("2d", f(3, 4)), at("linear", f(3, 4), 2, 1), at("zerodim", f(), 0.5)),
    op(
        "atan2",
        at("2d", f(3, 4), f(3, 4)),
        at("large", f(40, 130), f(40, 130)),
        at("broadcast", f(2, 1, 4), f(3, 1)),
        at("zerodim", f(3, 4), f()),
        at("empty", f(0, 4), f(4)),
        also=("torch.atan2", "torch.Tensor.atan2", "torch.arctan2", "torch.Tensor.arctan2"),
    ),
    method(
        "addcdiv",
        at("2d", f(3, 4), f(3, 4), positive(3, 4)),
        at("broadcast", f(2, 1, 4), f(3, 1), positive(4), value=0.5),
        at("zerodim", f(3, 4), f(), positive()),
    ),
    method(
        "addcmul",
        at("2d", f(3, 4), f(3, 4), f(3, 4)),
        at("large", f(65, 1030), f(65, 1030), f(1030)),
        at("broadcast", f(2, 1, 4), f(3, 1), f(4), value=0.5),
        at("zerodim", f(3, 4), f(), f()),
    ),
    op(
        "pow.Scalar",
        at("2d", 2.5, f(3, 4)),
        at("integer", 2, f(3, 4)),
        at("zerodim", 2.5, f()),
        via("torch.Tensor.__rpow__", f(3, 4), 2.5),
        also=("torch.pow", "operator.pow"),
    ),
    op(
        "pow.Tensor_Scalar",
        at("2d", positive(3, 4), 2.5),
        at("negative", positive(3, 4), -1),
        at("zerodim", f(), 3),
        at("empty", f(0, 3), 2),
        via("torch.square", f(3, 4)),
        via("torch.Tensor.square", f(3, 4)),
        also=("torch.pow", "torch.Tensor.pow", "torch.Tensor.__pow__", "operator.pow"),
    ),
    op(
        "pow.Tensor_Tensor",
        at("2d", positive(3, 4), f(3, 4)),
        at("broadcast", positive(2, 1, 4), f(3, 1)),
        at("zerodim", positive(3, 4), f()),
        also=("torch.pow", "torch.Tensor.pow", "torch.Tensor.__pow__", "operator.pow"),
    ),
)
