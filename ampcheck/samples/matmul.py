"""Matrix, vector and tensor products."""

from ampcheck.samples.describe import at, f, function, functions, linalg, method, op, via

OPS = {
    "_addmm_activation": function(
        at("relu", f(5), f(3, 4), f(4, 5)),
        at("gelu", f(3, 5), f(3, 4), f(4, 5), use_gelu=True),
        at("scaled", f(5), f(3, 4), f(4, 5), beta=0.5, alpha=2),
    ),
    "addbmm": method(
        at("batched", f(3, 5), f(2, 3, 4), f(2, 4, 5)),
        at("broadcast", f(5), f(2, 3, 4), f(2, 4, 5), beta=0.5, alpha=2),
        at("empty", f(3, 5), f(0, 3, 4), f(0, 4, 5)),
    ),
    "addmm": method(
        at("2d", f(3, 5), f(3, 4), f(4, 5)),
        at("large", f(70, 80), f(70, 96), f(96, 80)),
        at("broadcast", f(5), f(3, 4), f(4, 5)),
        at("scaled", f(1, 5), f(3, 4), f(4, 5), beta=0.5, alpha=2),
        at("empty", f(3, 5), f(3, 0), f(0, 5)),
    ),
    "addmv": method(
        at("vector", f(3), f(3, 4), f(4)),
        at("zerodim", f(), f(3, 4), f(4), beta=0.5, alpha=2),
        at("empty", f(3), f(3, 0), f(0)),
    ),
    "addr": method(
        at("vectors", f(3, 4), f(3), f(4)),
        at("broadcast", f(4), f(3), f(4), beta=0.5, alpha=2),
        at("empty", f(3, 0), f(3), f(0)),
    ),
    "baddbmm": method(
        at("batched", f(2, 3, 5), f(2, 3, 4), f(2, 4, 5)),
        at("large", f(2, 70, 40), f(2, 70, 65), f(2, 65, 40)),
        at("broadcast", f(5), f(2, 3, 4), f(2, 4, 5), beta=0.5, alpha=2),
        at("empty", f(0, 3, 5), f(0, 3, 4), f(0, 4, 5)),
    ),
    "bmm": method(
        at("batched", f(2, 3, 4), f(2, 4, 5)),
        at("large", f(3, 70, 65), f(3, 65, 80)),
        at("empty", f(0, 3, 4), f(0, 4, 5)),
    ),
    "chain_matmul": op(
        at("three", [f(3, 4), f(4, 2), f(2, 5)]),
        at("one", [f(3, 4)]),
        at("two", [f(3, 4), f(4, 2)]),
        via("torch.chain_matmul", f(3, 4), f(4, 2), f(2, 5)),
    ),
    "einsum": op(
        at("two", "bij,bjk->bik", [f(2, 3, 4), f(2, 4, 5)]),
        at("one", "ij->ji", [f(3, 4)]),
        at("three", "ij,jk,k->i", [f(3, 4), f(4, 2), f(2)], path=[1, 2, 0, 1]),
        via("torch.einsum", "bij,bjk->bik", f(2, 3, 4), f(2, 4, 5)),
        via("torch.einsum", "ij,jk", [f(3, 4), f(4, 5)]),
        via("torch.einsum", f(3, 4), [0, 1], f(4, 5), [1, 2], [0, 2]),
    ),
    "linalg_multi_dot": linalg(
        at("three", [f(3, 4), f(4, 2), f(2, 5)]),
        at("two", [f(3, 4), f(4, 2)]),
        at("vectors", [f(3), f(3, 4), f(4, 2), f(2)]),
    ),
    "linalg_vecdot": linalg(
        at("batched", f(3, 4), f(3, 4)),
        at("broadcast", f(2, 1, 4), f(3, 4)),
        at("dim", f(4, 3), f(4, 3), dim=0),
        at("empty", f(3, 0), f(3, 0)),
    ),
    "linear": op(
        at("bias", f(2, 3), f(4, 3), f(4)),
        at("large", f(70, 96), f(80, 96), f(80)),
        at("nobias", f(2, 3), f(4, 3)),
        at("batched", f(2, 5, 3), f(4, 3), f(4)),
        at("vector", f(3), f(4, 3), f(4)),
        via("torch.nn.functional.linear", f(2, 3), f(4, 3), bias=f(4)),
    ),
    "matmul": method(
        at("2d", f(3, 4), f(4, 5)),
        at("large", f(2, 70, 96), f(96, 80)),
        at("broadcast", f(2, 1, 3, 4), f(5, 4, 2)),
        at("vectors", f(4), f(4)),
        at("vector", f(2, 3, 4), f(4)),
        via("torch.Tensor.__rmatmul__", f(4, 5), f(3, 4)),
        also=("torch.Tensor.__matmul__", "operator.matmul", "torch.linalg.matmul"),
    ),
    "mm": method(
        at("2d", f(3, 4), f(4, 5)),
        at("large", f(70, 96), f(96, 80)),
        at("empty", f(0, 4), f(4, 5)),
        at("inner", f(3, 0), f(0, 5)),
    ),
    "mv": method(at("vector", f(3, 4), f(4)), at("empty", f(3, 0), f(0))),
    "dot": method(at("vectors", f(5), f(5)), at("empty", f(0), f(0))),
    "vdot": method(at("vectors", f(5), f(5)), at("empty", f(0), f(0))),
    "tensordot": op(
        at("one", f(2, 3), f(3, 4), [1], [0]),
        at("two", f(2, 3, 4), f(4, 3, 5), [1, 2], [1, 0]),
        at("outer", f(2), f(3), [], []),
        via("torch.tensordot", f(2, 3, 4), f(3, 4, 5), dims=2),
        via("torch.tensordot", f(2, 3), f(3, 4), dims=([1], [0])),
        via("torch.inner", f(2, 3), f(4, 3)),
        via("torch.Tensor.inner", f(2, 3), f(4, 3)),
    ),
    "cross": method(
        at("last", f(3, 3), f(3, 3), 1), at("first", f(3, 4), f(3, 4), 0), at("broadcast", f(2, 1, 3), f(1, 5, 3), -1)
    ),
    "bilinear": functions(at("bias", f(2, 3), f(2, 4), f(5, 3, 4), f(5)), at("nobias", f(2, 3), f(2, 4), f(5, 3, 4))),
}
