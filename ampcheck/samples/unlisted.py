"""Ops no dispatch key has a policy for: autocast leaves them alone.

Common ones, and in-place and out= forms of listed ones.
"""

from ampcheck.samples.describe import at, f, fixed, i, op, positive

_POINTWISE = ("relu", "gelu", "silu", "sigmoid", "tanh", "sqrt", "abs", "neg", "hardtanh", "leaky_relu", "elu")

OPS = (
    *(op(name, at("plain", positive(3, 4))) for name in _POINTWISE),
    op("add.Tensor", at("same", f(3, 4), f(3, 4)), at("scalar", f(3, 4), 2.0), also=("torch.add", "operator.add")),
    op("sub.Tensor", at("same", f(3, 4), f(3, 4)), also=("torch.sub", "operator.sub")),
    op("mul.Tensor", at("same", f(3, 4), f(3, 4)), also=("torch.mul", "operator.mul")),
    op("div.Tensor", at("same", f(3, 4), positive(3, 4)), also=("torch.div", "operator.truediv")),
    op("where.self", at("same", fixed("bool", 3, 4, fill="integers"), f(3, 4), f(3, 4)), also=("torch.where",)),
    op("maximum", at("same", f(3, 4), f(3, 4)), also=("torch.maximum",)),
    op("eq.Tensor", at("same", f(3, 4), f(3, 4)), also=("torch.eq", "operator.eq")),
    op("clone", at("plain", f(3, 4)), also=("torch.clone", "torch.Tensor.clone")),
    op("view", at("flat", f(3, 4), [12])),
    op("permute", at("swapped", f(3, 4), [1, 0]), also=("torch.permute",)),
    op("embedding", at("rows", f(5, 3), i(4, high=5))),
    op("index_select", at("rows", f(5, 3), 0, i(4, high=5)), also=("torch.index_select",)),
    op("gather", at("rows", f(5, 3), 0, i(2, 3, high=5)), also=("torch.gather",)),
    op("mean", at("all", f(3, 4)), also=("torch.mean", "torch.Tensor.mean")),
    op("amax", at("dim", f(3, 4), [1]), also=("torch.amax",)),
    op("max_pool2d", at("image", f(1, 2, 6, 6), [2, 2]), also=("torch.nn.functional.max_pool2d",)),
    op("_softmax", at("dim", f(3, 4), 1, False)),
    # In-place and out= forms of ops that have a policy go through as they are.
    op("mm.out", at("out", f(3, 4), f(4, 5), out=f(3, 5))),
    op("addmm_", at("square", f(3, 5), f(3, 4), f(4, 5)), also=("torch.Tensor.addmm_",)),
    op("baddbmm_", at("batch", f(2, 3, 5), f(2, 3, 4), f(2, 4, 5))),
    op("exp_", at("plain", f(3, 4)), also=("torch.exp_", "torch.Tensor.exp_")),
    op("exp.out", at("out", f(3, 4), out=f(3, 4))),
    op("log_", at("plain", positive(3, 4))),
    op("pow_.Scalar", at("square", f(3, 4), 2)),
    op("reciprocal_", at("plain", positive(3, 4))),
    op("addcmul_", at("same", f(3, 4), f(3, 4), f(3, 4))),
    op("cat.out", at("two", [f(2, 3), f(1, 3)], 0, out=f(3, 3))),
    op("scatter_add_", at("rows", f(5, 3), 0, i(2, 3, high=5), f(2, 3))),
    op("sum.IntList_out", at("dim", f(3, 4), [1], out=f(3))),
    op("cumsum_", at("dim", f(3, 4), 1)),
)
