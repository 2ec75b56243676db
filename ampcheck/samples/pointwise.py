"""Element-wise functions."""

from ampcheck.samples.describe import Samples, at, f, function, functional, method, positive, via


def _unary(fill: str, *aliases: str) -> Samples:
    """Return a function of one tensor, which is a method, too; `aliases` are its other paths."""
    return method(
        at("2d", f(3, 4, fill=fill)),
        at("large", f(60, 70, fill=fill)),
        at("zerodim", f(fill=fill)),
        at("empty", f(0, 3, fill=fill)),
        also=aliases,
    )


OPS = {
    "acos": _unary("signed_unit", "torch.arccos", "torch.Tensor.arccos"),
    "asin": _unary("signed_unit", "torch.arcsin", "torch.Tensor.arcsin"),
    "cosh": _unary("normal"),
    "erfinv": _unary("signed_unit", "torch.special.erfinv"),
    "exp": _unary("normal"),
    "expm1": _unary("normal", "torch.special.expm1"),
    "log": _unary("positive"),
    "log10": _unary("positive"),
    "log1p": _unary("positive", "torch.special.log1p"),
    "log2": _unary("positive"),
    "rsqrt": _unary("positive"),
    "sinh": _unary("normal"),
    "tan": _unary("signed_unit"),
    "reciprocal": method(
        at("2d", positive(3, 4)),
        at("zerodim", positive()),
        at("empty", positive(0, 3)),
        via("torch.Tensor.__rtruediv__", positive(3, 4), 3.0),
        via("operator.truediv", 3.0, positive(3, 4)),
    ),
    "softplus": functional(at("2d", f(3, 4)), at("linear", f(3, 4), 2, 1), at("zerodim", f(), 0.5)),
    "atan2": method(
        at("2d", f(3, 4), f(3, 4)),
        at("large", f(40, 130), f(40, 130)),
        at("broadcast", f(2, 1, 4), f(3, 1)),
        at("zerodim", f(3, 4), f()),
        at("empty", f(0, 4), f(4)),
        also=("torch.arctan2", "torch.Tensor.arctan2"),
    ),
    "addcdiv": method(
        at("2d", f(3, 4), f(3, 4), positive(3, 4)),
        at("broadcast", f(2, 1, 4), f(3, 1), positive(4), value=0.5),
        at("zerodim", f(3, 4), f(), positive()),
    ),
    "addcmul": method(
        at("2d", f(3, 4), f(3, 4), f(3, 4)),
        at("large", f(65, 1030), f(65, 1030), f(1030)),
        at("broadcast", f(2, 1, 4), f(3, 1), f(4), value=0.5),
        at("zerodim", f(3, 4), f(), f()),
    ),
    "pow.Scalar": function(
        at("2d", 2.5, f(3, 4)),
        at("integer", 2, f(3, 4)),
        at("zerodim", 2.5, f()),
        via("torch.Tensor.__rpow__", f(3, 4), 2.5),
        also=("operator.pow",),
    ),
    "pow.Tensor_Scalar": method(
        at("2d", positive(3, 4), 2.5),
        at("negative", positive(3, 4), -1),
        at("zerodim", f(), 3),
        at("empty", f(0, 3), 2),
        via("torch.square", f(3, 4)),
        via("torch.Tensor.square", f(3, 4)),
        also=("torch.Tensor.__pow__", "operator.pow"),
    ),
    "pow.Tensor_Tensor": method(
        at("2d", positive(3, 4), f(3, 4)),
        at("broadcast", positive(2, 1, 4), f(3, 1)),
        at("zerodim", positive(3, 4), f()),
        also=("torch.Tensor.__pow__", "operator.pow"),
    ),
}
