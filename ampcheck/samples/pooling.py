"""Pooling and its inverse."""

from ampcheck.samples.describe import at, distinct, f, functions, i, private, unit, via

OPS = {
    "adaptive_avg_pool3d": private(
        at("batched", f(1, 2, 3, 4, 5), (2, 2, 3)),
        at("unbatched", f(2, 3, 4, 5), (1, 2, 2)),
        at("mean", f(1, 2, 3, 4, 5), (1, 1, 1)),
        also=("torch.nn.functional.adaptive_avg_pool3d",),
    ),
    "adaptive_max_pool3d": private(
        at("batched", distinct(1, 2, 3, 4, 5), (2, 2, 3)),
        at("unbatched", distinct(2, 3, 4, 5), (1, 2, 2)),
        via("torch.nn.functional.adaptive_max_pool3d", distinct(1, 2, 3, 4, 5), (2, None, 3), return_indices=True),
        also=("torch.nn.functional.adaptive_max_pool3d",),
    ),
    "avg_pool3d": private(
        at("batched", f(1, 2, 3, 4, 5), (2, 3, 2)),
        at("padded", f(2, 3, 5, 5), (2, 2, 3), (1, 2, 2), (1, 0, 1), True, False),
        at("divisor", f(1, 2, 3, 4, 5), (2, 2, 2), (1, 1, 1), (0, 0, 0), False, True, 5),
        also=("torch.nn.functional.avg_pool3d",),
    ),
    "fractional_max_pool2d": private(
        at("batched", distinct(2, 2, 5, 6), (2, 2), (3, 2), unit(2, 2, 2)),
        at("unbatched", distinct(2, 5, 6), (2, 3), (2, 3), unit(1, 2, 2)),
        via(
            "torch.nn.functional.fractional_max_pool2d",
            distinct(2, 2, 5, 6),
            (2, 2),
            output_size=(3, 2),
            _random_samples=unit(2, 2, 2),
        ),
    ),
    "fractional_max_pool3d": private(
        at("batched", distinct(1, 2, 4, 5, 5), (2, 2, 2), (2, 3, 2), unit(1, 2, 3)),
        at("unbatched", distinct(2, 4, 4, 5), (2, 2, 3), (2, 2, 2), unit(1, 2, 3)),
        via(
            "torch.nn.functional.fractional_max_pool3d",
            distinct(1, 2, 4, 5, 5),
            (2, 2, 2),
            output_size=(2, 3, 2),
            _random_samples=unit(1, 2, 3),
        ),
    ),
    "max_pool3d": functions(
        at("batched", f(1, 2, 3, 4, 5), (2, 3, 2)),
        at("padded", f(2, 3, 5, 5), (2, 2, 3), (1, 2, 2), (1, 0, 1), 1, True),
        at("dilated", f(1, 2, 4, 5, 5), (2, 2, 2), (1, 1, 1), (0, 0, 0), (2, 1, 2)),
    ),
    "max_unpool2d": private(
        at("batched", f(1, 2, 2, 3), i(1, 2, 2, 3, fill="arange"), (4, 6)),
        at("unbatched", f(2, 2, 3), i(2, 2, 3, fill="arange"), (4, 5)),
        via("torch.nn.functional.max_unpool2d", f(1, 2, 2, 3), i(1, 2, 2, 3, fill="arange"), (2, 2)),
    ),
    "max_unpool3d": private(
        at("batched", f(1, 2, 2, 2, 3), i(1, 2, 2, 2, 3, fill="arange"), (4, 4, 6), (2, 2, 2), (0, 0, 0)),
        at("unbatched", f(2, 2, 2, 3), i(2, 2, 2, 3, fill="arange"), (4, 4, 5), (2, 2, 1), (1, 0, 0)),
        via("torch.nn.functional.max_unpool3d", f(1, 2, 2, 2, 3), i(1, 2, 2, 2, 3, fill="arange"), (2, 2, 2)),
    ),
}
