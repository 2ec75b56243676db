"""Every way to a storage of the device without a tensor, each in a process of its own: it works or is a clear error.

A way is a line of Python; what follows `=>` is what it must give, as text, or the error's words.
"""

import copy
import os
import pickle
import signal
import warnings
from collections.abc import Callable

import pytest
import torch

from tests.cli_support import PROGRAMS
from tests.jax.agreement import saved

pytestmark = pytest.mark.alone  # JAX must not have started where a process forks

SHARED = "cannot be shared between processes"
ROADS = PROGRAMS["roads-storages"].strip().replace("SHARED", SHARED)
if hasattr(torch.UntypedStorage, "_swap_data_ptr_"):  # since torch 2.12
    ROADS += "\ns()._swap_data_ptr_(torch.zeros(2).untyped_storage()) => cannot swap"
if hasattr(torch.UntypedStorage, "_resize_with_addr_"):  # since torch 2.13
    ROADS += "\ns()._resize_with_addr_(1, 8) => no address that could be set"


def t() -> torch.Tensor:
    """A tensor of two ones."""
    return torch.ones(2, device="jax")


def s() -> torch.UntypedStorage:
    """Its storage."""
    return t().untyped_storage()


def forked(run: Callable[[], str]) -> str:
    """What a call says in a process of its own, or how that process ended. JAX must not have started yet."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.write(writer, run().encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read().decode()
    _, status = os.waitpid(child, 0)
    return f"ended by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else said


def said(line: str) -> str:
    """What the expression gives, or the error's words."""
    warnings.simplefilter("ignore")
    try:
        names = {"torch": torch, "copy": copy, "pickle": pickle, "t": t, "s": s, "save": saved}
        return str(eval(line, names))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _walk() -> str:
    """Every way in one process, which prints each before it is taken: the one that ends the process is the last."""
    wrong = []
    for road in ROADS.splitlines():
        line, _, want = road.partition(" => ")
        got = said(line)
        if not (want == got or ("Error: " in got and want in got)):
            wrong.append(f"{line} gave {got[:200]!r}; expected {want!r}")
    return "\n".join(wrong)


@pytest.mark.nightly
def test_every_way_works_or_is_a_clear_error() -> None:
    """One process takes them all; only where it ends is each taken in its own, to name those that end it."""
    found = forked(_walk)
    if found.startswith("ended by"):
        ends = {line: forked(lambda line=line: said(line)) for line in ROADS.splitlines()}
        found = "\n".join(f"{line}: {how}" for line, how in ends.items() if how.startswith("ended by"))
    assert not found, found


def test_the_net_catches_a_way_that_nobody_thought_of() -> None:
    """PyTorch's own constructor, past ours, which would follow a null pointer without the net."""
    assert torch.jax.fallback_allocator
    words = forked(lambda: str(torch._C.StorageBase.__new__(torch.UntypedStorage, 4, device="jax").nbytes()))
    assert words == "4"
    refused = "t().set_(torch._C.StorageBase.__new__(torch.UntypedStorage, 4, device='jax'))"
    assert "the devices must match" in forked(lambda: said(refused))
