"""Rule precision: settings of how float32 is computed change values within a bound, and neither dtypes nor casts.

The promise, its sources, and what is compared: docs/coverage/precision.md.
"""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import backends
from torch.nn import functional

from ampcheck.runner.suite import Amp, Product, scenario

pytestmark = pytest.mark.rule("precision")


def _attribute(owner: object, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


SETTINGS: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "high": (lambda: torch.set_float32_matmul_precision("high"), ("cuda_product", "mkldnn_product")),
    "medium": (lambda: torch.set_float32_matmul_precision("medium"), ("cuda_product", "mkldnn_product")),
    "cuda_tf": (_attribute(backends.cuda.matmul, "allow_tf32", True), ("cuda_product",)),
    "cudnn_tf": (_attribute(backends.cudnn, "allow_tf32", False), ("cudnn_conv", "cudnn_rnn")),
    "every_backend": (_attribute(backends, "fp32_precision", "tf32"), ("every", "cuda_product", "cudnn", "mkldnn")),
    "cuda_one": (_attribute(backends.cuda.matmul, "fp32_precision", "tf32"), ("cuda_product",)),
    "mkldnn_one": (_attribute(backends.mkldnn.matmul, "fp32_precision", "bf16"), ("mkldnn_product",)),
    "mkldnn_conv": (_attribute(backends.mkldnn.conv, "fp32_precision", "bf16"), ("mkldnn_conv",)),
    "mkldnn_every": (_attribute(backends.mkldnn, "fp32_precision", "bf16"), ("mkldnn",)),
    "reduced_half": (_attribute(backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False), ("half",)),
    "reduced_brain": (_attribute(backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False), ("brain",)),
    "accumulated": (_attribute(backends.cuda.matmul, "allow_fp16_accumulation", True), ("sums",)),
    "deterministic": (lambda: torch.use_deterministic_algorithms(True, warn_only=True), ("deterministic",)),
}
"""What sets each, and the beginnings of the names in `READ` that it may change."""
READ: dict[str, Callable[[], object]] = {
    "every": lambda: backends.fp32_precision,
    "cuda_product": lambda: backends.cuda.matmul.fp32_precision,
    "cudnn": lambda: backends.cudnn.fp32_precision,
    "cudnn_conv": lambda: backends.cudnn.conv.fp32_precision,
    "cudnn_rnn": lambda: backends.cudnn.rnn.fp32_precision,
    "mkldnn": lambda: backends.mkldnn.fp32_precision,
    "mkldnn_product": lambda: backends.mkldnn.matmul.fp32_precision,
    "mkldnn_conv": lambda: backends.mkldnn.conv.fp32_precision,
    "mkldnn_rnn": lambda: backends.mkldnn.rnn.fp32_precision,
    "half": lambda: backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    "brain": lambda: backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    "sums": lambda: backends.cuda.matmul.allow_fp16_accumulation,
    "deterministic": lambda: (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    ),
}
"""Every setting, without the legacy names, which refuse to be read once a new one was set."""
OF_LOW_OR_NONE = ("reduced_half", "reduced_brain", "accumulated", "deterministic")
"""Settings that let no kernel compute float32 with shorter products."""
OPS: dict[str, tuple[str, tuple[tuple[int, ...], ...], Callable[..., torch.Tensor]]] = {
    "product": ("mm", ((8, 64), (64, 8)), torch.mm),
    "convolution": ("conv2d", ((2, 4, 6, 6), (3, 4, 3, 3)), functional.conv2d),
    "loss": ("mse_loss", ((4, 8), (4, 8)), functional.mse_loss),
    "sum": ("sum.dim_IntList", ((8, 64),), lambda x: x.sum(-1)),
}
PRECISION = Product(
    {
        "setting": tuple(SETTINGS),
        "place": ("before_region", "inside_region", "disabled_region", "no_region"),
        "op": tuple(OPS),
        "given": ("wide", "low"),
    }
)


def _settings() -> dict[str, object]:
    return {name: read() for name, read in READ.items()}


def _restore(before: dict[str, object]) -> None:
    """Set everything as it was; the most general first, for it writes to the others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_float32_matmul_precision("highest")
        backends.cudnn.allow_tf32 = before["cudnn_conv"] == "tf32"  # else reading it raises, as exporting does
        backends.fp32_precision = before["every"]
        backends.cudnn.fp32_precision = before["cudnn"]
        backends.cuda.matmul.fp32_precision = before["cuda_product"]
        for name, backend in (("cudnn", backends.cudnn), ("mkldnn", backends.mkldnn)):
            backend.conv.fp32_precision, backend.rnn.fp32_precision = before[f"{name}_conv"], before[f"{name}_rnn"]
        backends.mkldnn.matmul.fp32_precision = before["mkldnn_product"]
        backends.cuda.matmul.allow_fp16_reduced_precision_reduction = before["half"]
        backends.cuda.matmul.allow_bf16_reduced_precision_reduction = before["brain"]
        backends.cuda.matmul.allow_fp16_accumulation = before["sums"]
        torch.use_deterministic_algorithms(before["deterministic"][0], warn_only=before["deterministic"][1])


@scenario(PRECISION, dtypes="default")
def test_setting(amp: Amp, setting: str, place: str, op: str, given: str) -> None:
    """A setting changes itself alone, and values within their bound (set_float32_matmul_precision, notes/mkldnn)."""
    overload, shapes, function = OPS[op]
    dtype = amp.dtype if given == "low" else torch.float32
    inputs = [amp.rand(*shape).to(dtype) for shape in shapes]
    change, own = SETTINGS[setting]
    before = _settings()
    casting = amp.casting(overload, [dtype] * len(shapes), enabled=place not in ("disabled_region", "no_region"))
    runs_in = casting.dtype or casting.dtypes[0] or dtype
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the legacy names say that they are legacy
            if place == "no_region":
                change()
                out = function(*inputs)
            else:
                region = amp.region(enabled=place != "disabled_region")
                if place == "before_region":
                    change()
                    changed = _settings()
                    with region:
                        amp.assert_equal("settings that a region changed", _differing(changed, _settings()), [])
                with region:
                    entered = amp.state()
                    if place != "before_region":
                        change()
                    amp.assert_equal("state of autocast after the setting", amp.state(), entered)
                    changed = _settings()
                    out = function(*inputs)
                amp.assert_equal("settings that leaving the region changed", _differing(changed, _settings()), [])
        others = [name for name in _differing(before, _settings()) if not name.startswith(own)]
        amp.assert_equal("other settings that changed", others, [])
        amp.assert_equal("whether the setting changed", _differing(before, _settings()) != [], True)
        amp.assert_equal("dtype of autocast afterwards", torch.get_autocast_dtype(amp.type), amp.default)
    finally:
        _restore(before)
    amp.assert_equal("settings that are not as they were", _differing(before, _settings()), [])
    amp.assert_equal("legacy setting of cuDNN", backends.cudnn.allow_tf32, before["cudnn_conv"] == "tf32")
    amp.assert_equal(f"dtype of {overload}", out.dtype, runs_in)
    if amp.has_values:
        exact = function(*(amp.host(each).to(runs_in).double() for each in inputs))
        short = runs_in == torch.float32 and setting not in OF_LOW_OR_NONE
        step = torch.finfo(torch.bfloat16 if short else runs_in).eps
        amp.assert_close(f"values of {overload}", out.double(), exact, 16 * step)


def _differing(first: dict[str, object], second: dict[str, object]) -> list[str]:
    return [name for name in first if first[name] != second[name]]
