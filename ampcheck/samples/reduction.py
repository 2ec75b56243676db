"""Sums, products, norms, distances, softmax and quantiles."""

import torch

from ampcheck.samples.describe import Op, at, f, function, functions, method, not_on, op, positive, unit, via

# torch.norm leads to linalg_vector_norm and linalg_matrix_norm except on these device types.
_OLD_NORM = ("mps", "mtia")
_NORMS = ("torch.linalg.norm", "torch.linalg.matrix_norm")


def _softmax(name: str) -> Op:
    return op(
        f"{name}.int",
        at("dim", f(3, 4), 1),
        at("large", f(40, 130), 1),
        at("double", f(3, 4), 0, torch.float64),
        at("low", f(3, 4), 1, torch.bfloat16),
        at("zerodim", f(), 0),
        via(f"torch.nn.functional.{name}", f(3, 4), dim=1),
        via(f"torch.special.{name}", f(3, 4), 1),
        also=(f"torch.{name}", f"torch.Tensor.{name}"),
    )


OPS = (
    method(
        "cumprod",
        at("dim", positive(3, 4), 1),
        at("double", positive(3, 4), -1, dtype=torch.float64),
        at("low", positive(3, 4), 0, dtype=torch.bfloat16),
        at("zerodim", f(), 0),
    ),
    method(
        "cumsum",
        at("dim", f(3, 4), 1),
        at("large", f(600, 9), 1),
        at("double", f(3, 4), -1, dtype=torch.float64),
        at("low", f(3, 4), 0, dtype=torch.bfloat16),
        at("zerodim", f(), 0),
    ),
    op(
        "linalg_matrix_norm",
        at("one", f(3, 4), 1),
        at("double", f(3, 4), 1, dtype=torch.float64),
        at("batched", f(2, 3, 4), -1, [0, 2], True),
        also=_NORMS,
    ),
    op(
        "linalg_matrix_norm.str_ord",
        at("fro", f(3, 4), "fro"),
        at("double", f(3, 4), "fro", dtype=torch.float64),
        at("batched", f(2, 3, 4), "fro", [0, 2], True),
        at("nuc", f(3, 4), "nuc"),
        not_on(_OLD_NORM, via("torch.norm", f(3, 4), "nuc")),
        not_on(_OLD_NORM, via("torch.Tensor.norm", f(3, 4), "nuc")),
        also=_NORMS,
    ),
    op(
        "linalg_vector_norm",
        at("all", f(3, 4)),
        at("large", f(40, 130)),
        at("double", f(3, 4), dtype=torch.float64),
        at("dim", f(3, 4), 3, [1], True),
        at("empty", f(0, 3), 2, [0]),
        not_on(_OLD_NORM, via("torch.norm", f(3, 4), 2, dim=1)),
        not_on(_OLD_NORM, via("torch.Tensor.norm", f(3, 4), 2, dim=1)),
        not_on(_OLD_NORM, via("torch.norm", f(3, 4))),
        not_on(_OLD_NORM, via("torch.Tensor.norm", f(3, 4))),
        via("torch.linalg.norm", f(3, 4), dim=1),
        also=("torch.linalg.vector_norm", "torch.linalg.norm"),
    ),
    _softmax("log_softmax"),
    method(
        "prod",
        at("all", positive(3, 4)),
        at("double", positive(3, 4), dtype=torch.float64),
        at("low", positive(3, 4), dtype=torch.bfloat16),
        at("empty", f(0, 3)),
    ),
    method(
        "prod.dim_int",
        at("dim", positive(3, 4), 1),
        at("double", positive(3, 4), 0, True, dtype=torch.float64),
        at("low", positive(3, 4), 1, dtype=torch.bfloat16),
        at("empty", f(0, 3), 0),
    ),
    _softmax("softmax"),
    method(
        "sum",
        at("all", f(3, 4)),
        at("double", f(3, 4), dtype=torch.float64),
        at("low", f(3, 4), dtype=torch.bfloat16),
        at("empty", f(0, 3)),
    ),
    method(
        "sum.dim_IntList",
        at("dim", f(3, 4), [1]),
        at("large", f(40, 130), [1]),
        at("double", f(3, 4), [0], True, dtype=torch.float64),
        at("low", f(3, 4), [0, 1], dtype=torch.bfloat16),
        at("none", f(3, 4), None),
        via("torch.sum", f(3, 4), dim=1, keepdim=True),
    ),
    # torch.norm leads to linalg_vector_norm; aten::norm is still called by weight normalisation and distances.
    op(
        "norm.Scalar",
        at("two", f(3, 4), 2),
        at("one", f(3, 4), 1),
        at("zerodim", f(), 2),
        via("torch.norm_except_dim", f(3, 4), 2, -1),
    ),
    op(
        "norm.ScalarOpt_dim",
        at("two", f(3, 4), 2, [1], False),
        at("one", f(3, 4), 1, [0], True),
        at("none", f(3, 4), None, [0, 1], False),
        via("torch.norm_except_dim", f(3, 4)),
        via("torch.nn.functional.pairwise_distance", f(3, 4), f(3, 4)),
    ),
    op(
        "logsumexp",
        at("dim", f(3, 4), [1]),
        at("keepdim", f(3, 4), [0, 1], True),
        at("zerodim", f(), [0]),
        also=("torch.logsumexp", "torch.Tensor.logsumexp", "torch.special.logsumexp"),
    ),
    function(
        "frobenius_norm.dim",
        at("dims", f(3, 4), [0, 1]),
        at("keepdim", f(2, 3, 4), [0, 2], True),
        at("vector", f(3, 4), [1]),
    ),
    op("nuclear_norm", at("2d", f(3, 4)), at("keepdim", f(3, 4), True), also=("torch.nuclear_norm",)),
    function("nuclear_norm.dim", at("2d", f(3, 4), [0, 1]), at("batched", f(2, 3, 4), [0, 2], True)),
    method("dist", at("two", f(3, 4), f(3, 4)), at("broadcast", f(2, 1, 4), f(3, 1), 1), at("empty", f(0, 3), f(0, 3))),
    function(
        "cdist",
        at("two", f(3, 4), f(5, 4)),
        at("one", f(2, 3, 4), f(5, 4), 1.0),
        at("product", f(3, 4), f(5, 4), 2.0, 1),
        at("empty", f(0, 4), f(5, 4)),
    ),
    functions("pdist", at("two", f(4, 3)), at("one", f(4, 3), 1.0), at("empty", f(1, 3))),
    method("renorm", at("rows", f(3, 4), 2, 0, 1.0), at("last", f(2, 3, 4), 1, -1, 0.5)),
    functions(
        "cosine_similarity",
        at("dim", f(3, 4), f(3, 4)),
        at("broadcast", f(2, 1, 4), f(3, 4), -1),
        at("vectors", f(4), f(4), 0, 4.0),
    ),
    method("trace", at("2d", f(3, 4)), at("empty", f(0, 0))),
    *(
        quantile
        for name in ("quantile", "nanquantile")
        for quantile in (
            op(
                name,
                at("two", f(3, 5), unit(2)),
                at("dim", f(3, 5), unit(2), 1, True),
                at("zerodim", f(3, 5), unit(), 0, interpolation="midpoint"),
                also=(f"torch.{name}", f"torch.Tensor.{name}"),
            ),
            op(
                f"{name}.scalar",
                at("all", f(3, 5), 0.3),
                at("dim", f(3, 5), 0.3, 1, True),
                at("nearest", f(3, 5), 0.8, 0, interpolation="nearest"),
                also=(f"torch.{name}", f"torch.Tensor.{name}"),
            ),
        )
    ),
)
