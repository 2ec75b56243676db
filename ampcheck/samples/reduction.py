"""Sums, norms, distances, softmax and quantiles; losses; normalization, and quantization simulated in floating point.

Losses take their reduction as a number: 0 none, 1 mean, 2 sum.
"""

import torch

from ampcheck.samples.describe import (
    Sample,
    Samples,
    at,
    f,
    function,
    functions,
    i,
    linalg,
    log_probability,
    method,
    not_on,
    op,
    positive,
    private,
    sign,
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


def _difference(name: str, *others: Sample, **options: float) -> Samples:
    """Return a loss of the differences of two tensors. `others`: samples after the main one."""
    return private(
        at("mean", f(3, 4), f(3, 4)),
        *others,
        at("broadcast", f(3, 4), f(4), 0, *options.values()),
        at("scalar", f(), f(), 2),
        at("empty", f(0, 4), f(0, 4)),
        via(f"torch.nn.functional.{name}", f(3, 4), f(3, 4), reduction="sum", **options),
    )


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
    "binary_cross_entropy": private(
        at("weight", unit(3, 4), unit(3, 4), positive(3, 4), 0),
        at("mean", unit(3, 4), unit(3, 4)),
        at("empty", unit(0, 4), unit(0, 4), None, 2),
        via("torch.nn.functional.binary_cross_entropy", unit(3, 4), unit(3, 4), reduction="sum"),
    ),
    "binary_cross_entropy_with_logits": function(
        at("weights", f(3, 4), unit(3, 4), positive(3, 4), positive(4)),
        at("plain", f(3, 4), unit(3, 4), None, None, 0),
        at("posweight", f(3, 4), unit(3, 4), None, positive(4), 2),
        at("empty", f(0, 4), unit(0, 4)),
        via(
            "torch.nn.functional.binary_cross_entropy_with_logits",
            f(3, 4),
            unit(3, 4),
            positive(3, 4),
            pos_weight=positive(4),
        ),
    ),
    "cosine_embedding_loss": function(
        at("floattarget", f(3, 5), f(3, 5), sign(3), -0.75),
        at("inttarget", f(3, 5), f(3, 5), i(3, fill="one"), 0.0, 0),
        at("single", f(5), f(5), sign()),
        via("torch.nn.functional.cosine_embedding_loss", f(3, 5), f(3, 5), sign(3), reduction="sum"),
    ),
    "cross_entropy_loss": private(
        at("weight", f(3, 5), i(3, high=5), positive(5)),
        at("large", f(40, 130), i(40, high=130), positive(130)),
        at("probabilities", f(3, 5), unit(3, 5), positive(5), 0),
        at("smoothing", f(2, 5, 3), i(2, 3, high=5), None, 1, 0, 0.125),
        at("single", f(5), i(high=5)),
        via("torch.nn.functional.cross_entropy", f(3, 5), i(3, high=5), positive(5), reduction="sum"),
    ),
    "ctc_loss.IntList": function(
        at("padded", log_probability(6, 2, 5), i(2, 3, high=4), [6, 5], [3, 2], 4),
        at("joined", log_probability(6, 2, 5), i(5, high=4), [6, 1], [3, 2], 4, 0, True),
        at("unbatched", log_probability(6, 5), i(2, high=4), [6], [2], 4, 2, True),
        via("torch.nn.functional.ctc_loss", log_probability(6, 2, 5), i(2, 3, high=4), [6, 5], [3, 2], blank=4),
    ),
    "ctc_loss.Tensor": function(
        at("padded", log_probability(4, 3, 5), i(3, 2, high=4), i(3, fill="pivots"), i(3, fill="arange"), 4),
        at("sum", log_probability(4, 2, 5), i(2, 2, high=4), i(2, fill="one"), i(2, fill="pivots"), 4, 2, True),
        via(
            "torch.nn.functional.ctc_loss",
            log_probability(4, 3, 5),
            i(3, 2, high=4),
            i(3, fill="pivots"),
            i(3, fill="arange"),
            blank=4,
            zero_infinity=True,
        ),
    ),
    "hinge_embedding_loss": function(
        at("floattarget", f(3, 4), sign(3, 4)),
        at("inttarget", f(3, 4), i(3, 4, fill="one"), 0.5, 0),
        at("broadcast", f(3, 4), sign(4), 2.0, 2),
        via("torch.nn.functional.hinge_embedding_loss", f(3, 4), sign(3, 4), margin=0.5, reduction="none"),
    ),
    "huber_loss": _difference("huber_loss", delta=0.5),
    "kl_div": function(
        at("mean", log_probability(3, 4), unit(3, 4)),
        at("logtarget", log_probability(3, 4), log_probability(3, 4), 0, log_target=True),
        at("empty", f(0, 4), f(0, 4), 2),
        via("torch.nn.functional.kl_div", log_probability(3, 4), unit(3, 4), reduction="batchmean"),
    ),
    "l1_loss": _difference("l1_loss"),
    "margin_ranking_loss": function(
        at("floattarget", f(3, 4), f(3, 4), sign(3, 4), 0.25),
        at("inttarget", f(4), f(4), i(4, fill="one"), 0.5, 0),
        at("broadcast", f(3, 4), f(3, 4), sign(4), 0.0, 2),
        via("torch.nn.functional.margin_ranking_loss", f(5), f(5), sign(5), margin=0.25, reduction="none"),
    ),
    "mse_loss": _difference("mse_loss", at("large", f(65, 1030), f(65, 1030))),
    "multi_margin_loss": private(
        at("weight", f(3, 5), i(3, high=5), 1, 1, positive(5)),
        at("squared", f(3, 5), i(3, high=5), 2, 0.5, None, 0),
        at("single", f(5), i(1, high=5)),
        via("torch.nn.functional.multi_margin_loss", f(3, 5), i(3, high=5), p=2, weight=positive(5), reduction="sum"),
    ),
    "multilabel_margin_loss": private(
        at("2d", f(3, 5), i(3, 5, high=5)),
        at("single", f(5), i(5, high=5), 2),
        at("none", f(3, 5), i(3, 5, high=5), 0),
        via("torch.nn.functional.multilabel_margin_loss", f(3, 5), i(3, 5, high=5), reduction="sum"),
    ),
    "multilabel_margin_loss_forward": op(
        at("2d", f(3, 5), i(3, 5, high=5), 1),
        at("single", f(5), i(5, high=5), 2),
        at("none", f(3, 5), i(3, 5, high=5), 0),
    ),
    "nll_loss": private(
        at("weight", log_probability(3, 5), i(3, high=5), positive(5)),
        at("ignored", log_probability(3, 5), i(3, high=5), None, 0, 1),
        at("single", log_probability(5), i(high=5), None, 2),
        via("torch.nn.functional.nll_loss", log_probability(3, 5), i(3, high=5), positive(5), reduction="sum"),
    ),
    "nll_loss2d": private(
        at("weight", f(2, 4, 2, 3), i(2, 2, 3, high=4), positive(4)),
        at("ignored", f(2, 4, 2, 3), i(2, 2, 3, high=4), None, 0, 1),
        at("empty", f(0, 4, 2, 3), i(0, 2, 3, high=4), None, 2),
        via("torch.nn.functional.nll_loss", f(2, 4, 2, 3), i(2, 2, 3, high=4), positive(4), reduction="sum"),
    ),
    "poisson_nll_loss": function(
        at("log", f(3, 4), positive(3, 4), True, False, 1e-8, 1),
        at("full", positive(3, 4), positive(3, 4), False, True, 1e-3, 0),
        at("broadcast", f(3, 4), positive(4), True, False, 1e-8, 2),
        via("torch.nn.functional.poisson_nll_loss", f(3, 4), positive(3, 4), reduction="sum"),
    ),
    "smooth_l1_loss": _difference("smooth_l1_loss", beta=0.5),
    "soft_margin_loss": private(
        at("mean", f(3, 4), sign(3, 4)),
        at("scalar", f(), sign(), 2),
        at("empty", f(0, 4), f(0, 4), 0),
        via("torch.nn.functional.soft_margin_loss", f(3, 4), sign(3, 4), reduction="none"),
    ),
    "triplet_margin_loss": function(
        at("mean", f(3, 5), f(3, 5), f(3, 5)),
        at("swapped", f(3, 5), f(3, 5), f(3, 5), 0.5, 1.0, 0.25, True, 0),
        at("single", f(5), f(5), f(5)),
        via("torch.nn.functional.triplet_margin_loss", f(3, 5), f(3, 5), f(3, 5), margin=0.5, reduction="sum"),
    ),
    "batch_norm": function(
        at("eval", f(2, 3, 4), positive(3), f(3), f(3), positive(3), False, 0.125, 1e-5, False),
        at("training", f(4, 3, 2, 2), positive(3), f(3), f(3), positive(3), True, 0.125, 1e-5, False),
        at("bare", f(4, 3), None, None, None, None, True, 0.25, 0.125, True),
        via("torch.nn.functional.batch_norm", f(2, 3, 4), f(3), positive(3), weight=positive(3), bias=f(3)),
    ),
    "group_norm": functions(
        at("affine", f(2, 4, 3), 2, positive(4), f(4)),
        at("bare", f(2, 4), 4),
        at("weight", f(2, 4, 2, 3), 1, positive(4), None, 0.125, False),
    ),
    "layer_norm": functions(
        at("affine", f(2, 3, 4), (3, 4), positive(3, 4), f(3, 4)),
        at("large", f(40, 130), (130,), positive(130), f(130)),
        at("bare", f(3, 4), (4,)),
        at("weight", f(3, 4), (4,), positive(4), None, 0.125, False),
        at("empty", f(0, 4), (4,), f(4), f(4)),
    ),
    "native_layer_norm": function(
        at("affine", f(2, 3, 4), (3, 4), positive(3, 4), f(3, 4), 1e-5),
        at("bare", f(3, 4), (4,), None, None, 1e-3),
        at("empty", f(0, 4), (4,), f(4), f(4), 1e-5),
    ),
    "rms_norm": functions(
        at("weight", f(2, 3, 4), (3, 4), positive(3, 4), 1e-5),
        at("bare", f(3, 4), (4,)),
        at("empty", f(0, 4), (4,), f(4)),
    ),
    "fake_quantize_per_tensor_affine": function(
        at("signed", f(3, 4), 0.125, 0, -128, 127),
        at("shifted", f(5), 0.03125, 20, 0, 63),
        at("empty", f(0, 4), 0.125, 0, 0, 255),
    ),
}
