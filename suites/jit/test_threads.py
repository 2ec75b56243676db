"""Rule threads, compiled: a compiled function runs in the autocast state of the thread that calls it.

Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast, "The autocast state is thread-local".
"""

from collections.abc import Iterator

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario
from ampcheck.spec.case import DYNAMO

pytestmark = pytest.mark.rule("threads")


@scenario(compiler=DYNAMO)
def test_two_threads_two_dtypes(amp: Amp, compiler: str) -> None:
    """Two threads call one compiled function in turns, in regions of different dtypes."""
    x = amp.rand(2, 2)
    compiled = amp.compiled(compiler, torch.mm, x, x)

    def worker(dtype: torch.dtype) -> Iterator[None]:
        with amp.region(dtype):
            for turn in range(3):
                amp.assert_equal(f"dtype in turn {turn} of {dtype}", compiled(x, x).dtype, dtype)
                yield

    amp.interleave(lambda: worker(amp.dtype), lambda: worker(amp.other))
