"""Element-wise functions. Joining tensors and writing into copies of them at given places."""

from ampcheck.samples.describe import Samples, at, b, f, function, functional, i, method, positive, via


def _unary(fill: str, *aliases: str) -> Samples:
    """Return a function of one tensor, which is a method, too; `aliases` are its other paths."""
    return method(
        at("2d", f(3, 4, fill=fill)),
        at("large", f(60, 70, fill=fill)),
        at("zerodim", f(fill=fill)),
        at("empty", f(0, 3, fill=fill)),
        also=aliases,
    )


_THREE = [f(2, 3), f(4, 3), f(1, 3)]
_EQUAL = [f(2, 3), f(2, 3), f(2, 3)]

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
    "cat": function(
        at("three", _THREE),
        at("large", [f(900, 33), f(1100, 33)]),
        at("one", [f(2, 3)]),
        at("dim", [f(2, 3), f(2, 1)], -1),
        at("empty", [f(2, 3), f(0)]),
        via("torch.hstack", [f(2, 3), f(2, 1)]),
        via("torch.column_stack", [f(2, 3), f(2, 1)]),
        also=("torch.concat", "torch.concatenate", "torch.vstack", "torch.row_stack"),
    ),
    "stack": function(
        at("three", _EQUAL),
        at("large", [f(40, 70), f(40, 70)]),
        at("one", [f(2, 3)]),
        at("dim", [f(2, 3), f(2, 3)], -1),
        at("zerodim", [f(), f()]),
    ),
    "index_copy": method(
        at("rows", f(4, 3), 0, i(2, fill="arange"), f(2, 3)),
        at("large", f(40, 130), 0, i(30, fill="arange"), f(30, 130)),
        at("columns", f(2, 5), -1, i(3, fill="arange"), f(2, 3)),
        at("zerodim", f(), 0, i(fill="arange"), f()),
        at("empty", f(4, 3), 0, i(0), f(0, 3)),
    ),
    "index_put": method(
        at("pairs", f(4, 3), [i(2, fill="arange"), i(2, high=3)], f(2)),
        at("broadcast", f(4, 3), [i(2, fill="arange")], f(3)),
        at("masked", f(4, 3), [b(4, 3)], f()),
        at("accumulate", f(4, 3), [None, i(5, high=3)], f(4, 5), True),
    ),
    "scatter_add": method(
        at("rows", f(3, 4), 0, i(2, 4, high=3), f(2, 4)),
        at("large", f(40, 130), 0, i(5, 130, high=40), f(5, 130)),
        at("columns", f(3, 4), -1, i(3, 5, high=4), f(3, 6)),
        at("zerodim", f(), 0, i(fill="arange"), f()),
        at("empty", f(3, 4), 0, i(0, 4), f(0, 4)),
    ),
}
