"""Loss functions. The overloads take the reduction as a number: 0 none, 1 mean, 2 sum."""

from ampcheck.samples.describe import (
    Sample,
    Samples,
    at,
    f,
    function,
    i,
    log_probability,
    op,
    positive,
    private,
    sign,
    unit,
    via,
)


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
}
