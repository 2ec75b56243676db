"""Fourier transforms, and the ways between real and complex tensors."""

from ampcheck.samples.describe import Sample, Samples, TensorArg, at, f, fft, fixed, function, op, positive, via


def _fft(real: TensorArg, *others: Sample) -> Samples:
    return fft(at("real", real), *others)


def _complex(*shape: int) -> Sample:
    return at("complex", fixed("complex64", *shape))


OPS = {
    "fft_fft": _fft(f(3, 8), at("padded", f(8, 3), 10, 0, "ortho"), _complex(3, 8), at("single", f(8))),
    "fft_fft2": _fft(f(2, 4, 6), at("cropped", f(4, 6, 2), (3, 5), (0, 1), "forward"), _complex(4, 6)),
    "fft_fftn": _fft(f(2, 3, 4), at("cropped", f(2, 3, 4), (2, 2), (0, 2), "ortho"), _complex(2, 3, 4)),
    "fft_hfft": _fft(f(3, 5), at("padded", f(5, 3), 9, 0, "ortho"), _complex(3, 5)),
    "fft_ifft": _fft(f(3, 8), at("padded", f(8, 3), 10, 0, "ortho"), _complex(3, 8)),
    "fft_ifft2": _fft(f(2, 4, 6), at("cropped", f(4, 6, 2), (3, 5), (0, 1), "forward"), _complex(4, 6)),
    "fft_ifftn": _fft(f(2, 3, 4), at("cropped", f(2, 3, 4), (2, 2), (0, 2), "ortho"), _complex(2, 3, 4)),
    "fft_ihfft": _fft(f(3, 8), at("padded", f(8, 3), 10, 0, "ortho")),
    "fft_irfft": _fft(f(3, 5), at("padded", f(5, 3), 9, 0, "ortho"), _complex(3, 5)),
    "fft_irfft2": _fft(f(2, 4, 5), at("cropped", f(4, 5, 2), (3, 6), (0, 1), "forward"), _complex(4, 5)),
    "fft_irfftn": _fft(f(2, 3, 5), at("cropped", f(2, 3, 5), (2, 6), (0, 2), "ortho"), _complex(2, 3, 5)),
    "fft_rfft": _fft(f(3, 8), at("padded", f(8, 3), 10, 0, "ortho")),
    "fft_rfft2": _fft(f(2, 4, 6), at("cropped", f(4, 6, 2), (3, 5), (0, 1), "forward")),
    "fft_rfftn": _fft(f(2, 3, 4), at("cropped", f(2, 3, 4), (2, 2), (0, 2), "ortho")),
    "stft": op(
        at("window", f(2, 16), 8, 4, 6, positive(6), False, True, True),
        at("bare", f(16), 6, return_complex=True),
        at("aligned", f(2, 16), 8, 4, 6, positive(6), False, True, True, True),
        at("twosided", f(16), 8, 4, 8, positive(8), True, False, True),
        via("torch.stft", f(2, 16), 8, window=positive(8), center=False, return_complex=True),
        via("torch.Tensor.stft", f(2, 16), 8, window=positive(8), center=False, return_complex=True),
    ),
    "stft.center": op(
        at("window", f(2, 16), 8, 4, 6, positive(6), True, "constant", False, True, True),
        at("bare", f(16), 6, return_complex=True),
        at("uncentred", f(16), 8, 4, 6, positive(6), False, "reflect", True, False, True, True),
    ),
    "view_as_complex": function(at("2d", f(3, 2)), at("single", f(2)), at("empty", f(0, 4, 2))),
    "polar": function(
        at("same", positive(3, 4), f(3, 4)), at("broadcast", positive(3, 1), f(4)), at("scalar", positive(), f())
    ),
}
