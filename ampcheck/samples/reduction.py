"""Sums, products, norms, distances, softmax and quantiles."""

import torch

from ampcheck.samples.describe import (
    Samples,
    at,
    f,
    function,
    functions,
    linalg,
    method,
    not_on,
    op,
    positive,
    unit,
    via,
)

# torch.norm leads to linalg_vector_norm and linalg_matrix_norm except on these device types.
_NORM, _OLD_NORM = ("torch.norm", "torch.Tensor.norm"), ("mps", "mtia")
_NORMS = ("torch.linalg.norm", "torch.linalg.matrix_norm")


def _softmax(name: str) -> Samples:
    return method(
        at("dim", f(3, 4), 1),
        at("large", f(40, 130), 1),
        at("double", f(3, 4), 0, torch.float64),
        at("low", f(3, 4), 1, torch.bfloat16),
        at("zerodim", f(), 0),
        via(f"torch.nn.functional.{name}", f(3, 4), dim=1),
        via(f"torch.special.{name}", f(3, 4), 1),
    )


_QUANTILES = {
    "": method(
        at("two", f(3, 5), unit(2)),
        at("dim", f(3, 5), unit(2), 1, True),
        at("zerodim", f(3, 5), unit(), 0, interpolation="midpoint"),
    ),
    ".scalar": method(
        at("all", f(3, 5), 0.3),
        at("dim", f(3, 5), 0.3, 1, True),
        at("nearest", f(3, 5), 0.8, 0, interpolation="nearest"),
    ),
}
OPS = {
    "cumprod": method(
        at("dim", positive(3, 4), 1),
        at("double", positive(3, 4), -1, dtype=torch.float64),
        at("low", positive(3, 4), 0, dtype=torch.bfloat16),
        at("zerodim", f(), 0),
    ),
    "cumsum": method(
        at("dim", f(3, 4), 1),
        at("large", f(600, 9), 1),
        at("double", f(3, 4), -1, dtype=torch.float64),
        at("low", f(3, 4), 0, dtype=torch.bfloat16),
        at("zerodim", f(), 0),
    ),
    "linalg_matrix_norm": op(
        at("one", f(3, 4), 1),
        at("double", f(3, 4), 1, dtype=torch.float64),
        at("batched", f(2, 3, 4), -1, [0, 2], True),
        also=_NORMS,
    ),
    "linalg_matrix_norm.str_ord": op(
        at("fro", f(3, 4), "fro"),
        at("double", f(3, 4), "fro", dtype=torch.float64),
        at("batched", f(2, 3, 4), "fro", [0, 2], True),
        at("nuc", f(3, 4), "nuc"),
        *(not_on(_OLD_NORM, via(path, f(3, 4), "nuc")) for path in _NORM),
        also=_NORMS,
    ),
    "linalg_vector_norm": linalg(
        at("all", f(3, 4)),
        at("large", f(40, 130)),
        at("double", f(3, 4), dtype=torch.float64),
        at("dim", f(3, 4), 3, [1], True),
        at("empty", f(0, 3), 2, [0]),
        *(not_on(_OLD_NORM, via(path, f(3, 4), 2, dim=1)) for path in _NORM),
        *(not_on(_OLD_NORM, via(path, f(3, 4))) for path in _NORM),
        via("torch.linalg.norm", f(3, 4), dim=1),
        also=("torch.linalg.norm",),
    ),
    "log_softmax.int": _softmax("log_softmax"),
    "prod": method(
        at("all", positive(3, 4)),
        at("double", positive(3, 4), dtype=torch.float64),
        at("low", positive(3, 4), dtype=torch.bfloat16),
        at("empty", f(0, 3)),
    ),
    "prod.dim_int": method(
        at("dim", positive(3, 4), 1),
        at("double", positive(3, 4), 0, True, dtype=torch.float64),
        at("low", positive(3, 4), 1, dtype=torch.bfloat16),
        at("empty", f(0, 3), 0),
    ),
    "softmax.int": _softmax("softmax"),
    "sum": method(
        at("all", f(3, 4)),
        at("double", f(3, 4), dtype=torch.float64),
        at("low", f(3, 4), dtype=torch.bfloat16),
        at("empty", f(0, 3)),
    ),
    "sum.dim_IntList": method(
        at("dim", f(3, 4), [1]),
        at("large", f(40, 130), [1]),
        at("double", f(3, 4), [0], True, dtype=torch.float64),
        at("low", f(3, 4), [0, 1], dtype=torch.bfloat16),
        at("none", f(3, 4), None),
        via("torch.sum", f(3, 4), dim=1, keepdim=True),
    ),
    # torch.norm leads to linalg_vector_norm; aten::norm is still called by weight normalisation and distances.
    "norm.Scalar": op(
        at("two", f(3, 4), 2),
        at("one", f(3, 4), 1),
        at("zerodim", f(), 2),
        via("torch.norm_except_dim", f(3, 4), 2, -1),
    ),
    "norm.ScalarOpt_dim": op(
        at("two", f(3, 4), 2, [1], False),
        at("one", f(3, 4), 1, [0], True),
        at("none", f(3, 4), None, [0, 1], False),
        via("torch.norm_except_dim", f(3, 4)),
        via("torch.nn.functional.pairwise_distance", f(3, 4), f(3, 4)),
    ),
    "logsumexp": method(
        at("dim", f(3, 4), [1]),
        at("keepdim", f(3, 4), [0, 1], True),
        at("zerodim", f(), [0]),
        also=("torch.special.logsumexp",),
    ),
    "frobenius_norm.dim": function(
        at("dims", f(3, 4), [0, 1]), at("keepdim", f(2, 3, 4), [0, 2], True), at("vector", f(3, 4), [1])
    ),
    "nuclear_norm": function(at("2d", f(3, 4)), at("keepdim", f(3, 4), True)),
    "nuclear_norm.dim": function(at("2d", f(3, 4), [0, 1]), at("batched", f(2, 3, 4), [0, 2], True)),
    "dist": method(at("two", f(3, 4), f(3, 4)), at("broadcast", f(2, 1, 4), f(3, 1), 1), at("empty", f(0, 3), f(0, 3))),
    "cdist": function(
        at("two", f(3, 4), f(5, 4)),
        at("one", f(2, 3, 4), f(5, 4), 1.0),
        at("product", f(3, 4), f(5, 4), 2.0, 1),
        at("empty", f(0, 4), f(5, 4)),
    ),
    "pdist": functions(at("two", f(4, 3)), at("one", f(4, 3), 1.0), at("empty", f(1, 3))),
    "renorm": method(at("rows", f(3, 4), 2, 0, 1.0), at("last", f(2, 3, 4), 1, -1, 0.5)),
    "cosine_similarity": functions(
        at("dim", f(3, 4), f(3, 4)), at("broadcast", f(2, 1, 4), f(3, 4), -1), at("vectors", f(4), f(4), 0, 4.0)
    ),
    "trace": method(at("2d", f(3, 4)), at("empty", f(0, 0))),
    **{name + kind: samples for name in ("quantile", "nanquantile") for kind, samples in _QUANTILES.items()},
}
