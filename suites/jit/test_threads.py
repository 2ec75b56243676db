"""Rule threads, compiled: a compiled function runs in the autocast state of the thread that calls it.

Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast, "The autocast state is thread-local".
"""

from collections.abc import Iterator

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario
from ampcheck.spec.compilers import DYNAMO

pytestmark = pytest.mark.rule("threads")


@scenario(compiler=DYNAMO)
def test_compiled_in_a_region_called_by_a_thread(amp: Amp, compiler: str) -> None:
    """A function that one thread compiled in a region runs outside of every region in a new thread."""
    x = amp.rand(2, 2)
    compiled = amp.compiled(compiler, torch.mm, x, x)
    with amp.region():
        amp.assert_equal("dtype in the region", compiled(x, x).dtype, amp.dtype)
        amp.assert_equal("dtype in a thread", amp.thread(lambda: compiled(x, x).dtype), torch.float32)
        amp.assert_equal("dtype in the region again", compiled(x, x).dtype, amp.dtype)


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
