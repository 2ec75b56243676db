"""Ops no dispatch key has a policy for: autocast leaves them alone.

Common ones, and in-place and out= forms of listed ones.
"""

from ampcheck.samples.describe import at, f, fixed, i, op, positive

_POINTWISE = ("relu", "gelu", "silu", "sigmoid", "tanh", "sqrt", "abs", "neg", "hardtanh", "leaky_relu", "elu")

OPS = {
    **dict.fromkeys(_POINTWISE, op(at("plain", positive(3, 4)))),
    "add.Tensor": op(at("same", f(3, 4), f(3, 4)), at("scalar", f(3, 4), 2.0), also=("torch.add", "operator.add")),
    "sub.Tensor": op(at("same", f(3, 4), f(3, 4)), also=("torch.sub", "operator.sub")),
    "mul.Tensor": op(at("same", f(3, 4), f(3, 4)), also=("torch.mul", "operator.mul")),
    "div.Tensor": op(at("same", f(3, 4), positive(3, 4)), also=("torch.div", "operator.truediv")),
    "where.self": op(at("same", fixed("bool", 3, 4, fill="integers"), f(3, 4), f(3, 4)), also=("torch.where",)),
    "maximum": op(at("same", f(3, 4), f(3, 4)), also=("torch.maximum",)),
    "eq.Tensor": op(at("same", f(3, 4), f(3, 4)), also=("torch.eq", "operator.eq")),
    "clone": op(at("plain", f(3, 4)), also=("torch.clone", "torch.Tensor.clone")),
    "view": op(at("flat", f(3, 4), [12])),
    "permute": op(at("swapped", f(3, 4), [1, 0]), also=("torch.permute",)),
    "embedding": op(at("rows", f(5, 3), i(4, high=5))),
    "index_select": op(at("rows", f(5, 3), 0, i(4, high=5)), also=("torch.index_select",)),
    "gather": op(at("rows", f(5, 3), 0, i(2, 3, high=5)), also=("torch.gather",)),
    "mean": op(at("all", f(3, 4)), also=("torch.mean", "torch.Tensor.mean")),
    "amax": op(at("dim", f(3, 4), [1]), also=("torch.amax",)),
    "max_pool2d": op(at("image", f(1, 2, 6, 6), [2, 2]), also=("torch.nn.functional.max_pool2d",)),
    "_softmax": op(at("dim", f(3, 4), 1, False)),
    # In-place and out= forms of ops that have a policy go through as they are.
    "mm.out": op(at("out", f(3, 4), f(4, 5), out=f(3, 5))),
    "addmm_": op(at("square", f(3, 5), f(3, 4), f(4, 5)), also=("torch.Tensor.addmm_",)),
    "baddbmm_": op(at("batch", f(2, 3, 5), f(2, 3, 4), f(2, 4, 5))),
    "exp_": op(at("plain", f(3, 4)), also=("torch.exp_", "torch.Tensor.exp_")),
    "exp.out": op(at("out", f(3, 4), out=f(3, 4))),
    "log_": op(at("plain", positive(3, 4))),
    "pow_.Scalar": op(at("square", f(3, 4), 2)),
    "reciprocal_": op(at("plain", positive(3, 4))),
    "addcmul_": op(at("same", f(3, 4), f(3, 4), f(3, 4))),
    "cat.out": op(at("two", [f(2, 3), f(1, 3)], 0, out=f(3, 3))),
    "scatter_add_": op(at("rows", f(5, 3), 0, i(2, 3, high=5), f(2, 3))),
    "sum.IntList_out": op(at("dim", f(3, 4), [1], out=f(3))),
    "cumsum_": op(at("dim", f(3, 4), 1)),
}
