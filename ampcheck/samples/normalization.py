"""Normalization, and quantization simulated in floating point."""

from ampcheck.samples.describe import at, f, function, functions, positive, via

OPS = {
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
