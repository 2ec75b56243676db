"""Fourier transforms, and the ways between real and complex tensors."""

from ampcheck.samples.describe import Op, Sample, TensorArg, at, f, fixed, function, op, positive, via


def _fft(name: str, real: TensorArg, *others: Sample) -> Op:
    return op(f"fft_{name}", at("real", real), *others, also=(f"torch.fft.{name}",))


def _complex(*shape: int) -> Sample:
    return at("complex", fixed("complex64", *shape))


OPS = (
    _fft("fft", f(3, 8), at("padded", f(8, 3), 10, 0, "ortho"), _complex(3, 8), at("single", f(8))),
    _fft("fft2", f(2, 4, 6), at("cropped", f(4, 6, 2), (3, 5), (0, 1), "forward"), _complex(4, 6)),
    _fft("fftn", f(2, 3, 4), at("cropped", f(2, 3, 4), (2, 2), (0, 2), "ortho"), _complex(2, 3, 4)),
    _fft("hfft", f(3, 5), at("padded", f(5, 3), 9, 0, "ortho"), _complex(3, 5)),
    _fft("ifft", f(3, 8), at("padded", f(8, 3), 10, 0, "ortho"), _complex(3, 8)),
    _fft("ifft2", f(2, 4, 6), at("cropped", f(4, 6, 2), (3, 5), (0, 1), "forward"), _complex(4, 6)),
    _fft("ifftn", f(2, 3, 4), at("cropped", f(2, 3, 4), (2, 2), (0, 2), "ortho"), _complex(2, 3, 4)),
    _fft("ihfft", f(3, 8), at("padded", f(8, 3), 10, 0, "ortho")),
    _fft("irfft", f(3, 5), at("padded", f(5, 3), 9, 0, "ortho"), _complex(3, 5)),
    _fft("irfft2", f(2, 4, 5), at("cropped", f(4, 5, 2), (3, 6), (0, 1), "forward"), _complex(4, 5)),
    _fft("irfftn", f(2, 3, 5), at("cropped", f(2, 3, 5), (2, 6), (0, 2), "ortho"), _complex(2, 3, 5)),
    _fft("rfft", f(3, 8), at("padded", f(8, 3), 10, 0, "ortho")),
    _fft("rfft2", f(2, 4, 6), at("cropped", f(4, 6, 2), (3, 5), (0, 1), "forward")),
    _fft("rfftn", f(2, 3, 4), at("cropped", f(2, 3, 4), (2, 2), (0, 2), "ortho")),
    op(
        "stft",
        at("window", f(2, 16), 8, 4, 6, positive(6), False, True, True),
        at("bare", f(16), 6, return_complex=True),
        at("aligned", f(2, 16), 8, 4, 6, positive(6), False, True, True, True),
        at("twosided", f(16), 8, 4, 8, positive(8), True, False, True),
        via("torch.stft", f(2, 16), 8, window=positive(8), center=False, return_complex=True),
        via("torch.Tensor.stft", f(2, 16), 8, window=positive(8), center=False, return_complex=True),
    ),
    op(
        "stft.center",
        at("window", f(2, 16), 8, 4, 6, positive(6), True, "constant", False, True, True),
        at("bare", f(16), 6, return_complex=True),
        at("uncentred", f(16), 8, 4, 6, positive(6), False, "reflect", True, False, True, True),
    ),
    function("view_as_complex", at("2d", f(3, 2)), at("single", f(2)), at("empty", f(0, 4, 2))),
    function(
        "polar",
        at("same", positive(3, 4), f(3, 4)),
        at("broadcast", positive(3, 1), f(4)),
        at("scalar", positive(), f()),
    ),
)
