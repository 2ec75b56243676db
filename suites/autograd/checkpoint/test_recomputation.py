"""Rule checkpoint: a checkpointed function is computed again in the autocast state it was computed in.

torch.utils.checkpoint drops what a function computed and runs the function again in the backward pass. Parts: the state
in which it runs again; how often and how far it runs. Source: torch/utils/checkpoint.py of PyTorch 2.13 and
https://docs.pytorch.org/docs/2.13/checkpoint.html.
"""

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointError, checkpoint, checkpoint_sequential, set_checkpoint_early_stop

from ampcheck.runner.suite import Amp, named, scenario

pytestmark = pytest.mark.rule("checkpoint")

BOTH = named(reentrant=True, saved=False)
Seen = list[tuple[tuple[bool, torch.dtype, bool], torch.dtype]]
Around = Callable[[Amp], AbstractContextManager[object]]

REGIONS: dict[str, Around] = {
    "none": lambda amp: nullcontext(),
    "on": lambda amp: amp.region(),
    "off": lambda amp: amp.region(enabled=False),
    "off_other": lambda amp: amp.region(amp.other, enabled=False),
    "dropped": lambda amp: amp.region(cache_enabled=False),
    "other": lambda amp: amp.region(amp.other),
}
"""What may surround a forward or a backward pass."""


def _recording_function(amp: Amp, weight: torch.Tensor, seen: Seen) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that notes the state it finds and the dtype its product has."""

    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.mm(x, weight)
        seen.append((amp.state(), out.dtype))
        return torch.sin(out)

    return function


def _leaves(amp: Amp) -> tuple[torch.Tensor, torch.Tensor]:
    return amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)


def _watched(amp: Amp) -> tuple[torch.Tensor, Seen, Callable[[torch.Tensor], torch.Tensor]]:
    """Return an input, and a function of it with what it notes; see `_recording_function`."""
    (x, weight), seen = _leaves(amp), []
    return x, seen, _recording_function(amp, weight, seen)


def _expect_two_equal_runs(amp: Amp, what: str, seen: Seen) -> None:
    amp.assert_equal(f"how often {what} ran", len(seen), 2)
    amp.assert_equal(f"state and dtype when {what} ran again", seen[-1], seen[0])


@scenario(around=REGIONS, reentrant=BOTH, values=True)
def test_computed_again(amp: Amp, around: str, reentrant: bool) -> None:
    """Recomputation finds enabled, dtype and cache as the forward did, and puts back what it found (#71124, #90504)."""
    (x, weight), seen = _leaves(amp), []
    with REGIONS[around](amp):
        expected = amp.state()
        out = checkpoint(_recording_function(amp, weight, seen), x, use_reentrant=reentrant)
    before = amp.state(), amp.depth()
    out.float().sum().backward()
    amp.assert_equal("state and depth after the backward pass", (amp.state(), amp.depth()), before)
    amp.assert_equal("state in the forward pass", seen[0][0], expected)
    _expect_two_equal_runs(amp, "the function", seen)
    grads = [getattr(leaf.grad, "dtype", None) for leaf in (x, weight)]
    amp.assert_equal("dtypes of the gradients of x and weight", grads, [torch.float32] * 2)


@scenario(later=REGIONS, reentrant=BOTH, values=True)
def test_backward_elsewhere(amp: Amp, later: str, reentrant: bool) -> None:
    """The region a backward pass runs in does not reach the recomputation, which has that of the forward (#71124)."""
    x, seen, function = _watched(amp)
    with amp.region():
        out = checkpoint(function, x, use_reentrant=reentrant)
    loss = out.float().sum()
    with REGIONS[later](amp):
        before = amp.state(), amp.depth()
        loss.backward()
        amp.assert_equal("state and depth after the backward pass", (amp.state(), amp.depth()), before)
    _expect_two_equal_runs(amp, "the function", seen)


@scenario(later=["other", "off"], reentrant=BOTH, values=True)
def test_backward_where_weight_was_used(amp: Amp, later: str, reentrant: bool) -> None:
    """A backward pass in another region that has cast the weight already recomputes in the forward's dtype."""
    seen: Seen = []
    x, weight, v = (amp.rand(3, 3, requires_grad=True) for _ in range(3))
    with amp.region():
        out = checkpoint(_recording_function(amp, weight, seen), x, use_reentrant=reentrant)
    loss = out.float().sum()
    with REGIONS[later](amp):
        torch.mm(weight, v)
        loss.backward()
    _expect_two_equal_runs(amp, "the function", seen)


@scenario(inner=["on", "off", "dropped"], reentrant=BOTH, values=True)
def test_region_inside(amp: Amp, inner: str, reentrant: bool) -> None:
    """A region inside the function, in another one around it, is entered again within the replayed one."""
    inside, outside = list[Any](), list[Any]()
    x, weight = _leaves(amp)

    def function(x: torch.Tensor) -> torch.Tensor:
        with REGIONS[inner](amp):
            hidden = _recording_function(amp, weight, inside)(x)
        return _recording_function(amp, weight, outside)(hidden.float())

    with amp.region(amp.other, cache_enabled=False):
        out = checkpoint(function, x, use_reentrant=reentrant)
    out.float().sum().backward()
    amp.assert_equal("dtype inside", inside[0][1], torch.float32 if inner == "off" else amp.dtype)
    amp.assert_equal("dtype outside", outside[0][1], amp.other)
    _expect_two_equal_runs(amp, "the inner region", inside)
    _expect_two_equal_runs(amp, "the outer region", outside)


@scenario(reentrant=BOTH, values=True)
def test_set_by_hand(amp: Amp, reentrant: bool) -> None:
    """State set without a region is replayed as one set by a region is (_get_autocast_kwargs)."""
    x, seen, function = _watched(amp)
    torch.set_autocast_enabled(amp.type, True)
    torch.set_autocast_dtype(amp.type, amp.dtype)
    torch.set_autocast_cache_enabled(False)
    out = checkpoint(function, x, use_reentrant=reentrant)
    torch.set_autocast_enabled(amp.type, False)
    torch.set_autocast_dtype(amp.type, amp.other)
    torch.set_autocast_cache_enabled(True)
    out.float().sum().backward()
    amp.assert_equal("state in the forward pass", seen[0], ((True, amp.dtype, False), amp.dtype))
    _expect_two_equal_runs(amp, "the function", seen)
    amp.assert_equal("state afterwards", amp.state(), (False, amp.other, True))


@scenario(
    host=named(host_on=True, host_off=False), reentrant=BOTH, types=("cuda", "xpu", "mps", "mtia", "jax"), values=True
)
def test_host_type_too(amp: Amp, host: bool, reentrant: bool) -> None:
    """The state of the CPU is replayed beside that of the device (_get_autocast_kwargs returns both)."""
    seen: list[tuple[object, ...]] = []
    x, weight = _leaves(amp)

    def function(x: torch.Tensor) -> torch.Tensor:
        state = amp.state(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        out = torch.mm(x, weight)
        seen.append((*state, out.dtype))
        return torch.sin(out)

    with torch.autocast("cpu", dtype=amp.other, enabled=host), amp.region(cache_enabled=False):
        out = checkpoint(function, x, use_reentrant=reentrant)
    loss = out.float().sum()
    with torch.autocast("cpu", dtype=amp.dtype, enabled=not host):
        loss.backward()
        after = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), amp.depth()
        amp.assert_equal("state of the CPU and depth afterwards", after, (not host, amp.dtype, 1))
    amp.assert_equal("states in the forward pass", seen[0], ((True, amp.dtype, False), host, amp.other, amp.dtype))
    amp.assert_equal("states in the recomputation", seen[-1], seen[0])
    amp.assert_equal("how often the function ran", len(seen), 2)


@scenario(reentrant=BOTH, values=True)
def test_inside_each_other(amp: Amp, reentrant: bool) -> None:
    """A checkpoint within one is computed again in the inner state, whichever of the two asks for it (checkpoint)."""
    inner, outer = list[Any](), list[Any]()
    x, weight = _leaves(amp)

    def function(x: torch.Tensor) -> torch.Tensor:
        hidden = _recording_function(amp, weight, outer)(x)
        with amp.region(amp.other, cache_enabled=False):
            return checkpoint(_recording_function(amp, weight, inner), hidden, use_reentrant=False)

    with amp.region(cache_enabled=False):
        out = checkpoint(function, x, use_reentrant=reentrant)
    out.float().sum().backward()
    _expect_two_equal_runs(amp, "the outer function", outer)
    amp.assert_equal("states of the inner function", set(inner), {((True, amp.other, False), amp.other)})
    amp.assert_equal("whether the inner function ran again", len(inner) > 1, True)
    amp.assert_equal("state and depth afterwards", (amp.state(), amp.depth()), ((False, amp.default, True), 0))


@scenario(segments=[1, 2, 3], reentrant=BOTH, values=True)
def test_sequence(amp: Amp, segments: int, reentrant: bool) -> None:
    """Each function but those of the last segment is computed twice, in one state (checkpoint_sequential)."""
    seens: list[Seen] = [[] for _ in range(3)]
    weights = [amp.rand(3, 3, requires_grad=True) for _ in range(3)]
    functions = [_recording_function(amp, weight, seen) for weight, seen in zip(weights, seens, strict=True)]
    x = amp.rand(3, 3, requires_grad=True)
    with amp.region(cache_enabled=False):
        out = checkpoint_sequential(functions, segments, x, use_reentrant=reentrant)
    out.float().sum().backward()
    twice = {1: 0, 2: 1, 3: 2}[segments]
    amp.assert_equal("how often each ran", [len(seen) for seen in seens], [2] * twice + [1] * (3 - twice))
    states = {state for seen in seens for state in seen}
    amp.assert_equal("states and dtypes", states, {((True, amp.dtype, False), amp.dtype)})
    amp.assert_equal("dtypes of the gradients", [getattr(w.grad, "dtype", None) for w in weights], [torch.float32] * 3)


@scenario(reentrant=BOTH, types=("cuda", "xpu", "mps", "mtia", "jax"), values=True)
def test_tensors_of_the_host(amp: Amp, reentrant: bool) -> None:
    """A function of CPU tensors is computed again in the CPU's region, where a device is in use too (pytorch#99626)."""
    seen: list[tuple[object, ...]] = []
    x, weight = torch.rand(3, 3, requires_grad=True), torch.rand(3, 3, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.mm(x, weight)
        seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), out.dtype))
        return torch.sin(out)

    amp.rand(2)
    with torch.autocast("cpu", dtype=amp.dtype):
        out = checkpoint(function, x, use_reentrant=reentrant)
    out.float().sum().backward()
    amp.assert_equal("state and dtype in both passes", seen, [(True, amp.dtype, amp.dtype)] * 2)
    amp.assert_equal("dtypes of gradients", [getattr(t.grad, "dtype", None) for t in (x, weight)], [torch.float32] * 2)


@scenario(reentrant=BOTH, types=("cpu",), values=True)
def test_tensors_without_autocast(amp: Amp, reentrant: bool) -> None:
    """Where the tensors' type has no autocast, the CPU's state is replayed all the same (_get_autocast_kwargs)."""
    seen: list[tuple[object, ...]] = []
    x = torch.ones(3, 3, device="meta", requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append((amp.state(), amp.probe(), amp.depth()))
        return torch.sin(torch.mm(x, x))

    with amp.region(cache_enabled=False):
        out = checkpoint(function, x, use_reentrant=reentrant)
    out.sum().backward()
    amp.assert_equal("states and dtypes in both passes", [found[:2] for found in seen], [seen[0][:2]] * 2)
    amp.assert_equal("state and dtype in the forward pass", seen[0], ((True, amp.dtype, False), amp.dtype, 1))
    amp.assert_equal("device of the gradient", x.grad is not None and x.grad.is_meta, True)


# ---- how often and how far a function runs
def _require_safe_hook_exceptions(amp: Amp) -> None:
    """Raise Unsupported where an exception in a hook of the backward pass cannot be tried."""
    if amp.type == torch._C._get_privateuse1_backend_name():
        amp.unsupported("an exception in an unpack hook ends the process (python-backend-hook-exception)")


@scenario(stop=named(early=True, whole=False), values=True)
def test_where_it_stops(amp: Amp, stop: bool) -> None:
    """Recomputation stops once it has what is needed, or goes on; neither leaves a region open (early_stop)."""
    steps: list[object] = []
    x, weight = _leaves(amp)

    def function(x: torch.Tensor) -> torch.Tensor:
        with amp.region():
            steps.append("first")
            out = torch.sin(torch.mm(x, weight))
            with amp.region(amp.other):
                steps.append(amp.state())
                return out + 1

    with set_checkpoint_early_stop(stop):
        out = checkpoint(function, x, use_reentrant=False)
    before = amp.state(), amp.depth()
    out.float().sum().backward()
    once = ["first", (True, amp.other, True)]
    amp.assert_equal("steps", steps, once + (["first"] if stop else once))
    amp.assert_equal("state and depth afterwards", (amp.state(), amp.depth()), before)


@scenario(where=["first", "again"], reentrant=BOTH, values=True)
def test_a_failure(amp: Amp, where: str, reentrant: bool) -> None:
    """An exception of the function, in either run, comes out and the state is restored (checkpoint)."""
    if where == "again" and not reentrant:
        _require_safe_hook_exceptions(amp)
    x, weight = _leaves(amp)
    runs: list[object] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        runs.append(amp.state())
        with amp.region(amp.other, cache_enabled=False):
            if len(runs) == (1 if where == "first" else 2):
                raise KeyError("on purpose")
            return torch.sin(torch.mm(x, weight))

    def both_passes() -> None:
        with amp.region():
            out = checkpoint(function, x, use_reentrant=reentrant)
        out.float().sum().backward()

    before = amp.state(), amp.depth()
    amp.assert_raises("a function that fails", KeyError, "on purpose", both_passes)
    amp.assert_equal("state and depth afterwards", (amp.state(), amp.depth()), before)
    both_passes()
    amp.assert_equal("states it ran in", set(runs), {(True, amp.dtype, True)})


@scenario(check=["default", "none"], values=True)
def test_other_dtype_when_run_again(amp: Amp, check: str) -> None:
    """A function that saves another dtype the second time is refused, unless told not to look (determinism_check)."""
    if check == "default":
        _require_safe_hook_exceptions(amp)
    x, weight = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3)
    runs: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        with amp.region(enabled=len(runs) == 1):
            return torch.sin(torch.mm(x, weight)).float()

    out = checkpoint(function, x, use_reentrant=False, determinism_check=check).sum()
    if check == "default":
        amp.assert_raises("a backward pass after another forward", CheckpointError, "different metadata", out.backward)
    else:
        amp.assert_raises("products of two dtypes", RuntimeError, "dtype", out.backward)
    amp.assert_equal("how often it ran", len(runs), 2)


@scenario(values=True)
def test_around_by_request(amp: Amp) -> None:
    """A region that context_fn gives for the forward and one for the recomputation are inside the replayed one."""
    seen: list[object] = []
    x, weight = _leaves(amp)

    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.mm(x, weight)
        seen.append((amp.state(), amp.depth() > 0, out.dtype))
        return torch.sin(out)

    with amp.region(amp.other):
        regions = amp.region(cache_enabled=False), amp.region(cache_enabled=False)
        out = checkpoint(function, x, use_reentrant=False, context_fn=lambda: regions)
    out.float().sum().backward()
    amp.assert_equal("states and dtypes", seen, [((True, amp.dtype, False), True, amp.dtype)] * 2)


@scenario(reentrant=BOTH, values=True)
def test_memory(amp: Amp, reentrant: bool) -> None:
    """Intermediate results, in any precision, are freed after the forward (checkpoint)."""
    x, weight = _leaves(amp)
    made: list[weakref.ref[torch.Tensor]] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        hidden = torch.mm(x, weight)
        wide = torch.softmax(hidden, -1)
        made.extend((weakref.ref(hidden), weakref.ref(wide)))
        return torch.mm(torch.sin(hidden), weight).sum() + wide.exp().sum()

    with amp.region():
        plain = function(x)
        amp.assert_equal("whether the first is kept without a checkpoint", made[0]() is not None, True)
        made.clear()
        out = checkpoint(function, x, use_reentrant=reentrant)
        amp.assert_equal("tensors kept by the checkpoint", [ref() is not None for ref in made], [False, False])
    (plain + out).backward()
    amp.assert_equal("tensors kept afterwards", [ref() is not None for ref in made], [False] * 4)


@scenario(values=True)
def test_saved_tensors(amp: Amp) -> None:
    """A tensor that a graph node saved comes back from the recomputation in the lower precision it was saved in."""
    x, weight = _leaves(amp)
    with amp.region():
        want: Any = torch.mm(x, weight).grad_fn
        out: Any = checkpoint(lambda x: torch.mm(x, weight), x, use_reentrant=False).grad_fn
    for name in ("_saved_self", "_saved_mat2"):
        got, wanted = getattr(out, name), getattr(want, name)
        amp.assert_equal(f"dtype and values of {name}", (got.dtype, amp.values(got)), (amp.dtype, amp.values(wanted)))
