"""Sample inputs per overload, one file per family. `docs/contributing.md` says how to add one."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from ampcheck.samples.describe import Op

FAMILIES = (
    *("matmul", "convolution", "recurrent", "attention", "pointwise", "reduction", "fft", "linalg", "pooling"),
    *("padding", "resampling", "unlisted"),
)

SUMS = ("sum", "mean", "cumsum", "trace")


@cache
def _families() -> Mapping[str, str]:
    """Return the kind of setting that concerns an op whose results are sums of products, by packet."""
    kinds = {"matmul": "matmul", "convolution": "conv"}
    found = {name: import_module(f"ampcheck.samples.{family}").OPS for family, name in kinds.items()}
    return {overload.partition(".")[0]: kind for kind, ops in found.items() for overload in ops} | dict.fromkeys(
        SUMS, "sum"
    )


def sums_products(overload: str) -> str:
    """Return "matmul", "conv" or "sum" for an op whose results are sums of products, after PyTorch's names of the
    settings of their precision; "" for any other."""
    return _families().get(overload.partition(".")[0].removesuffix("_"), "")


@cache
def catalogue() -> Mapping[str, Op]:
    """Return every op that has samples, by overload, in the order of the families' files.

    Raises ValueError where two files describe the same overload.
    """
    out: dict[str, Op] = {}
    for family in FAMILIES:
        for overload, make in import_module(f"ampcheck.samples.{family}").OPS.items():
            if overload in out:
                raise ValueError(f"{overload} has samples twice, the second time in ampcheck/samples/{family}.py")
            out[overload] = make(overload)
    return out
