"""Convolutions, forward and transposed, and prelu, whose weight is a channel's like theirs."""

from ampcheck.samples.describe import at, f, function, functional, functions, method, op, via

_CONVOLUTIONS = {
    "bias": (f(2, 3, 5, 4), f(4, 3, 3, 2), f(4), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "nobias": (f(2, 3, 5, 4), f(6, 1, 3, 2), None, [2, 1], [2, 1], [1, 2], False, [0, 0], 3),
    "transposed": (f(2, 4, 5), f(4, 1, 3), f(2), [3], [0], [2], True, [2], 2),
}
# The flags benchmark, deterministic and cudnn_enabled. A benchmark picks an algorithm anew, so bits would differ.
_FLAGS = {name: (False, name != "nobias", name != "nobias") for name in _CONVOLUTIONS}

OPS = {
    "_convolution": function(
        *(at(name, *given, *_FLAGS[name], name == "nobias") for name, given in _CONVOLUTIONS.items())
    ),
    "_convolution.deprecated": function(*(at(name, *given, *_FLAGS[name]) for name, given in _CONVOLUTIONS.items())),
    "_mps_convolution": function(
        at("bias", f(2, 3, 5, 4), f(4, 3, 3, 2), f(4), [0, 0], [1, 1], [1, 1], 1),
        at("nobias", f(2, 3, 5, 4), f(6, 1, 3, 2), None, [2, 1], [2, 1], [1, 2], 3),
    ),
    "conv1d": functional(
        at("bias", f(2, 3, 6), f(4, 3, 3), f(4)),
        at("large", f(2, 16, 130), f(24, 16, 5), f(24)),
        at("nobias", f(2, 3, 6), f(4, 3, 3)),
        at("unbatched", f(4, 6), f(6, 2, 3), f(6), [2], [1], [2], 2),
        at("empty", f(0, 3, 6), f(4, 3, 3), f(4)),
        via("torch.conv1d", f(2, 3, 6), f(4, 3, 3), bias=f(4), stride=2, padding=1),
    ),
    "conv1d.padding": op(
        at("same", f(2, 3, 6), f(4, 3, 3), f(4), [1], "same"),
        at("valid", f(2, 3, 6), f(6, 1, 3), None, [2], "valid", [2], 3),
        # An even kernel pads one side more than the other, in a separate step.
        at("uneven", f(2, 3, 6), f(4, 3, 2), f(4), [1], "same"),
        via("torch.conv1d", f(2, 3, 6), f(4, 3, 3), f(4), padding="same"),
        via("torch.nn.functional.conv1d", f(2, 3, 6), f(4, 3, 3), f(4), padding="same"),
    ),
    "conv2d": functional(
        at("bias", f(2, 3, 5, 4), f(4, 3, 3, 2), f(4)),
        at("large", f(2, 16, 20, 18), f(8, 16, 3, 3), f(8)),
        at("nobias", f(2, 3, 5, 4), f(4, 3, 3, 2)),
        at("unbatched", f(4, 5, 4), f(6, 2, 3, 2), f(6), [2, 1], [1, 0], [1, 2], 2),
        at("empty", f(0, 3, 5, 4), f(4, 3, 3, 2), f(4)),
        via("torch.conv2d", f(2, 3, 5, 4), f(4, 3, 3, 2), bias=f(4), stride=2, padding=1),
    ),
    "conv2d.padding": op(
        at("same", f(2, 3, 5, 4), f(4, 3, 3, 1), f(4), [1, 1], "same"),
        at("valid", f(2, 3, 5, 4), f(6, 1, 3, 2), None, [2, 1], "valid", [1, 2], 3),
        at("uneven", f(2, 3, 5, 4), f(4, 3, 3, 2), f(4), [1, 1], "same"),
        via("torch.conv2d", f(2, 3, 5, 4), f(4, 3, 3, 1), f(4), padding="same"),
        via("torch.nn.functional.conv2d", f(2, 3, 5, 4), f(4, 3, 3, 1), f(4), padding="same"),
    ),
    "conv3d": functional(
        at("bias", f(2, 2, 3, 4, 3), f(3, 2, 2, 3, 1), f(3)),
        at("nobias", f(2, 2, 3, 4, 3), f(3, 2, 2, 3, 1)),
        at("unbatched", f(2, 3, 4, 3), f(4, 1, 2, 3, 1), f(4), [1, 2, 1], [1, 0, 0], [2, 1, 1], 2),
        via("torch.conv3d", f(2, 2, 3, 4, 3), f(3, 2, 2, 3, 1), bias=f(3), padding=1),
    ),
    "conv3d.padding": op(
        at("same", f(2, 2, 3, 4, 3), f(3, 2, 1, 3, 1), f(3), [1, 1, 1], "same"),
        at("valid", f(2, 2, 3, 4, 3), f(4, 1, 2, 3, 1), None, [1, 2, 1], "valid", [2, 1, 1], 2),
        at("uneven", f(2, 2, 3, 4, 3), f(3, 2, 2, 3, 1), f(3), [1, 1, 1], "same"),
        via("torch.conv3d", f(2, 2, 3, 4, 3), f(3, 2, 1, 3, 1), f(3), padding="same"),
        via("torch.nn.functional.conv3d", f(2, 2, 3, 4, 3), f(3, 2, 1, 3, 1), f(3), padding="same"),
    ),
    "conv_tbc": functions(at("valid", f(6, 2, 3), f(3, 3, 4), f(4)), at("padded", f(6, 2, 3), f(3, 3, 4), f(4), 1)),
    "conv_transpose1d": functional(
        at("bias", f(2, 3, 5), f(3, 2, 3), f(2)),
        at("nobias", f(2, 3, 5), f(3, 2, 3)),
        at("unbatched", f(4, 5), f(4, 3, 3), f(6), [2], [1], [1], 2, [2]),
        via("torch.conv_transpose1d", f(2, 3, 5), f(3, 2, 3), bias=f(2), stride=2),
    ),
    "conv_transpose2d.input": functional(
        at("bias", f(2, 3, 5, 4), f(3, 2, 3, 2), f(2)),
        at("nobias", f(2, 3, 5, 4), f(3, 2, 3, 2)),
        at("unbatched", f(4, 5, 4), f(4, 3, 3, 2), f(6), [2, 1], [1, 0], [1, 0], 2, [1, 2]),
        via("torch.conv_transpose2d", f(2, 3, 5, 4), f(3, 2, 3, 2), bias=f(2), stride=2),
    ),
    "conv_transpose3d.input": functional(
        at("bias", f(2, 2, 3, 2, 3), f(2, 3, 2, 3, 1), f(3)),
        at("nobias", f(2, 2, 3, 2, 3), f(2, 3, 2, 3, 1)),
        at("unbatched", f(2, 3, 2, 3), f(2, 3, 2, 3, 1), f(6), [2, 1, 1], [1, 0, 0], [1, 0, 0], 2, [1, 2, 1]),
        via("torch.conv_transpose3d", f(2, 2, 3, 2, 3), f(2, 3, 2, 3, 1), bias=f(3), stride=2),
    ),
    "convolution": function(*(at(name, *given) for name, given in _CONVOLUTIONS.items())),
    "cudnn_convolution": function(
        at("2d", f(2, 3, 5, 4), f(4, 3, 3, 2), [0, 0], [1, 1], [1, 1], 1, False, True, False),
        at("groups", f(2, 4, 5, 4), f(6, 2, 3, 2), [1, 0], [2, 1], [1, 2], 2, False, True, True),
    ),
    "cudnn_convolution_transpose": function(
        at("2d", f(2, 3, 5, 4), f(3, 2, 3, 2), [0, 0], [0, 0], [1, 1], [1, 1], 1, False, True, False),
        at("groups", f(2, 4, 5, 4), f(4, 3, 3, 2), [1, 0], [1, 0], [2, 1], [1, 2], 2, False, True, True),
    ),
    "prelu": method(
        at("channels", f(2, 3, 4), f(3)),
        at("shared", f(2, 3), f(1)),
        at("zerodim", f(), f()),
        at("empty", f(0, 3), f(3)),
        also=("torch.nn.functional.prelu",),
    ),
}
