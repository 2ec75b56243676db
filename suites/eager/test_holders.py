"""Rule holders: whatever holds a region of a thread, leaving it puts back what entering it found.

The promise: `torch.autocast` is a context manager and a decorator, its state is that of the thread, and leaving a
region puts back what entering it found (https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast; `__enter__` and
`__exit__` of torch/amp/autocast_mode.py). So a region that a suspended generator, coroutine or task holds stays in
force for what else runs in the thread, and of two regions that overlap, the one that is left last decides the state.
`ampcheck.spec.state` says what is to be seen after each step.
"""

import asyncio
import copy
import functools
import pickle
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import torch
from torch import nn

from ampcheck.checks.training import plain_function
from ampcheck.runner.suite import Amp, Product, named, promised, scenario, where
from ampcheck.spec.state import Process, Region, Tensor, Thread
from ampcheck.spec.torch_dtypes import name_of

pytestmark = pytest.mark.rule("holders")

End = Callable[[str], None]


# ---- what holds a region: each function enters it, and returns what ends the holder
class Planned(Exception):
    """The exception that a holder ends with where it is to raise."""


def _raised(call: Callable[[], object]) -> None:
    with suppress(Planned, StopIteration, StopAsyncIteration, asyncio.CancelledError):
        call()


def _by_hand(region: Any) -> End:
    region.__enter__()
    return lambda end: region.__exit__(*((Planned, Planned(), None) if end == "raises" else (None, None, None)))


def _ending(made: Any, ends: dict[str, Callable[[Any], object]]) -> End:
    """Return what ends a holder, by the way it is to end; of a holder that is dropped nothing else has a reference."""
    held = [made]

    def close(end: str) -> None:
        last = held.pop()
        if end in ends:
            _raised(lambda: ends[end](last))

    return close


SENT: dict[str, Callable[[Any], object]] = {
    "returns": lambda made: made.send(None),
    "raises": lambda made: made.throw(Planned()),
    "closed": lambda made: made.close(),
}
AWAITED: dict[str, Callable[[Any], object]] = {
    "returns": lambda made: made.__anext__().send(None),
    "raises": lambda made: made.athrow(Planned()).send(None),
    "closed": lambda made: made.aclose().send(None),
}
LEFT: dict[str, Callable[[Any], object]] = {
    "returns": lambda made: made.__exit__(None, None, None),
    "raises": lambda made: made.__exit__(Planned, Planned(), None),
}


def _generator(region: Any) -> End:
    def steps() -> Iterator[None]:
        with region:
            yield

    made = steps()
    next(made)
    return _ending(made, SENT)


class _Pause:
    def __await__(self) -> Generator[None, None, None]:
        yield


def _coroutine(region: Any) -> End:
    async def work() -> None:
        with region:
            await _Pause()

    made = work()
    made.send(None)
    return _ending(made, SENT)


def _async_generator(region: Any) -> End:
    async def steps() -> AsyncIterator[None]:
        with region:
            yield

    made: Any = steps()
    with suppress(StopIteration):
        made.__anext__().send(None)
    return _ending(made, AWAITED)


def _task(region: Any) -> End:
    loop = asyncio.new_event_loop()

    async def work(until: asyncio.Future[None]) -> None:
        with region:
            await until

    until = loop.create_future()
    task = loop.create_task(work(until))
    loop.run_until_complete(asyncio.sleep(0))

    def close(end: str) -> None:
        if end == "returns":
            until.set_result(None)
        elif end == "raises":
            until.set_exception(Planned())
        else:
            task.cancel()
        _raised(lambda: loop.run_until_complete(task))
        loop.close()

    return close


def _managed(region: Any) -> End:
    @contextmanager
    def around() -> Iterator[None]:
        with region:
            yield

    made = around()
    made.__enter__()
    return _ending(made, LEFT)


def _stack(region: Any) -> End:
    stack = ExitStack()
    stack.enter_context(region)
    return _ending(stack, LEFT)


def _moved_stack(region: Any) -> End:
    with ExitStack() as first:
        first.enter_context(region)
        return _ending(first.pop_all(), LEFT)


def _hooks(region: Any) -> End:
    class Fails(nn.Module):
        def forward(self, x: int) -> int:
            raise Planned

    def enter(module: nn.Module, args: object) -> None:
        region.__enter__()

    def leave(module: nn.Module, args: object, out: object) -> None:
        region.__exit__(None, None, None)

    first = nn.Identity()
    first.register_forward_pre_hook(enter)
    first(0)

    def close(end: str) -> None:
        last = Fails() if end == "raises" else nn.Identity()
        last.register_forward_hook(leave, always_call=True)
        _raised(lambda: last(0))

    return close


HOLDERS: dict[str, Callable[[Any], End]] = {
    "by_hand": _by_hand,
    "generator": _generator,
    "coroutine": _coroutine,
    "async_generator": _async_generator,
    "task": _task,
    "managed": _managed,
    "stack": _stack,
    "moved_stack": _moved_stack,
    "hooks": _hooks,
}
"""`__enter__` and `__exit__`, a generator, a coroutine, an async generator, a task of an event loop, a function that
`contextmanager` decorates, an ExitStack, one that `pop_all` gave, a hook before one module and one after another."""

SUSPENDED = tuple(name for name in HOLDERS if name not in ("managed", "moved_stack"))
"""Those of which two overlap: the rest differ from a generator and from a stack in how they end alone."""

# ---- regions
COPIES: dict[str, Callable[[Any], Any]] = {
    "shared": lambda region: region,
    "copied": copy.copy,
    "deep_copied": copy.deepcopy,
    "pickled": lambda region: pickle.loads(pickle.dumps(region)),
}
"""What is made of the first region object for the second holder."""

REGIONS: dict[str, dict[str, bool]] = {
    "same": {},
    "other": {"cache_enabled": False},
    "off": {"enabled": False},
    "elsewhere": {},
}
"""The dtype of the case, the other one without the cache, disabled, and of another device type; and their options."""


def _made(amp: Amp, kind: str) -> Any:
    if kind == "elsewhere":
        return torch.autocast(amp.elsewhere, dtype=amp.other)
    return amp.region(amp.other if kind == "other" else amp.dtype, **REGIONS[kind])


class _Model:
    """A thread by `ampcheck.spec.state`, and what is to be seen in it."""

    def __init__(self, amp: Amp) -> None:
        self.here, self.there = amp.type, amp.elsewhere
        self.low, self.other = name_of(amp.dtype), name_of(amp.other)
        self.policy = amp.policies.get("mm", "fallthrough")
        process = Process()
        process.defaults = {**process.defaults, amp.type: name_of(amp.default)}
        self.thread: Thread = process.thread()
        self.looks: list[tuple[object, ...]] = [self.seen()]
        """What is to be seen at first, and after each region that was entered or left."""

    def made(self, kind: str) -> Region:
        device = self.there if kind == "elsewhere" else self.here
        return self.thread.construct(device, self.low if kind in ("same", "off") else self.other, **REGIONS[kind])

    def enter(self, *regions: Region) -> None:
        for region in regions:
            self.thread.enter(region)
            self.looks.append(self.seen())

    def exit(self, *regions: Region) -> None:
        for region in regions:
            self.thread.exit(region)
            self.looks.append(self.seen())

    def seen(self) -> tuple[object, ...]:
        """State here, enabled and dtype elsewhere, depth, a product's dtype, and how often its weight is cast."""
        here, there = self.thread.state(self.here), self.thread.state(self.there)
        given = [Tensor("fp32"), Tensor("fp32", name=f"weight in {here.dtype}", requires_grad=True)]
        outcome = self.thread.op(self.here, self.policy, "mm", given)
        product = outcome.expectation.leaves[0]
        state = (here.enabled, here.dtype, here.cache_enabled)
        return state, (there.enabled, there.dtype), here.depth, product, outcome.casts - (product != "fp32")


class _Looking:
    """Looks at a thread: what `_Model.seen` predicts."""

    def __init__(self, amp: Amp) -> None:
        self.amp, self.x = amp, amp.rand(2, 2)
        self.weights = {dtype: amp.rand(2, 2, requires_grad=True) for dtype in (amp.dtype, amp.other)}

    def __call__(self, when: str, promised: Any) -> None:
        amp, there = self.amp, self.amp.elsewhere
        enabled, dtype, kept = amp.state()
        weight = self.weights[dtype]
        product = name_of(amp.probe())
        casts = amp.casts(lambda: torch.mm(self.x, weight), weight)
        elsewhere = torch.is_autocast_enabled(there), name_of(torch.get_autocast_dtype(there))
        got = (enabled, name_of(dtype), kept), elsewhere, amp.depth(), product, casts
        names = ("state", "state of another device type", "nesting depth", "dtype of a product", "casts of a weight")
        for name, one, wanted in zip(names, got, promised, strict=True):
            amp.assert_equal(f"{name} {when}", one, wanted)


# ---- two holders at once
OVERLAP = Product(
    {"first": SUSPENDED, "second": SUSPENDED, "order": ("nested", "crossed"), "region": (*REGIONS, *COPIES)}
)


@promised
def _overlap_seen(amp: Amp, order: str, region: str) -> list[object]:
    model = _Model(amp)
    first = model.made("same")
    model.enter(first)
    second = first if region == "shared" else model.made("same" if region in COPIES else region)
    model.enter(second)
    model.exit(*((first, second) if order == "crossed" else (second, first)))
    return model.looks


@scenario(OVERLAP, dtypes="default")
def test_overlap(amp: Amp, first: str, second: str, order: str, region: str) -> None:
    """Each of two regions that overlap puts back what entering it found (autocast_mode.py, __enter__ and __exit__)."""
    look, promised = _Looking(amp), iter(_overlap_seen(amp, order, region))
    look("before both", next(promised))
    outer = _made(amp, "same")
    ends = [HOLDERS[first](outer)]
    look("in the first region", next(promised))
    try:
        inner = COPIES[region](outer) if region in COPIES else _made(amp, region)
    except TypeError as error:
        amp.assert_equal("what making the second region raises", f"{type(error).__name__}: {error}", None)
        ends[0]("returns")
        return
    ends.append(HOLDERS[second](inner))
    look("in both", next(promised))
    in_order = ends if order == "crossed" else ends[::-1]
    for end, when in zip(in_order, ("in one region still", "after both"), strict=True):
        end("returns")
        look(when, next(promised))


# ---- how a holder ends
ENDS = Product(
    {
        "holder": tuple(HOLDERS),
        "end": ("returns", "raises", "closed", "dropped"),
        "inside": ("nothing", "other", "off"),
    },
    {
        "only generators, coroutines and tasks can be closed": where(
            end="closed", holder=("by_hand", "managed", "stack", "moved_stack", "hooks")
        ),
        "a region whose holder is dropped stays entered, unless that is a generator or a coroutine": where(
            end="dropped", holder=("by_hand", "task", "stack", "moved_stack", "hooks")
        ),
    },
)


@promised
def _end_seen(amp: Amp, inside: str) -> list[object]:
    model = _Model(amp)
    around = [] if inside == "nothing" else [model.made(inside)]
    model.enter(*around)
    region = model.made("same")
    model.enter(region)
    model.exit(region, *around)
    return [*model.looks[len(around) :][:3], model.looks[-1]]


@scenario(ENDS, dtypes="default")
def test_end(amp: Amp, holder: str, end: str, inside: str) -> None:
    """However its holder ends, a region is left once and puts back what was there (autocast_mode.py, __exit__)."""
    look, promised = _Looking(amp), iter(_end_seen(amp, inside))
    with ExitStack() as around:
        if inside != "nothing":
            around.enter_context(_made(amp, inside))
        look("before the holder", next(promised))
        close = HOLDERS[holder](_made(amp, "same"))
        look("while it is held", next(promised))
        close(end)
        look("after the holder", next(promised))
    look("after all", next(promised))


# ---- decorated callables
def _product(amp: Amp) -> Any:
    """State, depth and a product's dtype."""
    enabled, dtype, kept = amp.state()
    return (enabled, name_of(dtype), kept), amp.depth(), name_of(amp.probe())


Call = Callable[[], Any]


def _function(amp: Amp, region: Any) -> Call:
    @region
    def function() -> object:
        return _product(amp)

    return function


class _Seeing:
    """An object with methods of each kind, which give what they see."""

    def __init__(self, amp: Amp) -> None:
        self.found = _product(amp)

    def method(self, amp: Amp) -> object:
        return _product(amp)

    def __call__(self, amp: Amp) -> object:
        return _product(amp)


def _method(amp: Amp, region: Any, kind: str) -> Call:
    class Holder:
        @region
        def method(self) -> object:
            return _product(amp)

        @classmethod
        @region
        def class_method(cls) -> object:
            return _product(amp)

        @staticmethod
        @region
        def static_method() -> object:
            return _product(amp)

    return getattr(Holder(), kind)


def _module(amp: Amp, of_forward: Any, of_all: Any) -> Call:
    class Model(nn.Module):
        @of_forward
        def forward(self) -> object:
            return _product(amp)

    return of_all(Model())


def _applied(amp: Amp, region: Any) -> Call:
    found = []

    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        found.append(_product(amp))
        return x.clone()

    apply = region(plain_function(forward).apply)
    return lambda: (apply(amp.rand(2)), found[-1])[1]


def _generator_function(amp: Amp, region: Any) -> Call:
    @region
    def steps() -> Iterator[object]:
        yield _product(amp)

    return lambda: next(steps())


def _first(made: Any) -> Any:
    """Return what an awaitable that never waits gives."""
    try:
        made.send(None)
    except StopIteration as ended:
        return ended.value
    return None


def _coroutine_function(amp: Amp, region: Any) -> Call:
    @region
    async def work() -> object:
        return _product(amp)

    return lambda: _first(work())


def _async_generator_function(amp: Amp, region: Any) -> Call:
    @region
    async def steps() -> AsyncIterator[object]:
        yield _product(amp)

    return lambda: _first(steps().__anext__())


def _builtin(amp: Amp, region: Any) -> Call:
    mm = region(torch.mm)
    return lambda: name_of(mm(amp.rand(2, 2), amp.rand(2, 2)).dtype)


CALLABLES: dict[str, Callable[[Amp, Any], Call]] = {
    "function": _function,
    "anonymous": lambda amp, region: region(lambda: _product(amp)),
    "method": lambda amp, region: _method(amp, region, "method"),
    "class_method": lambda amp, region: _method(amp, region, "class_method"),
    "static_method": lambda amp, region: _method(amp, region, "static_method"),
    "bound_method": lambda amp, region: functools.partial(region(_Seeing(amp).method), amp),
    "object": lambda amp, region: functools.partial(region(_Seeing(amp)), amp),
    "class": lambda amp, region: functools.partial(lambda made: made(amp).found, region(_Seeing)),
    "partial": lambda amp, region: region(functools.partial(_product, amp)),
    "memoized": lambda amp, region: region(functools.lru_cache(maxsize=0)(lambda: _product(amp))),
    "builtin": _builtin,
    "forward": lambda amp, region: _module(amp, region, lambda model: model),
    "whole_model": lambda amp, region: _module(amp, lambda forward: forward, region),
    "apply": _applied,
    "generator_function": _generator_function,
    "coroutine_function": _coroutine_function,
    "async_generator_function": _async_generator_function,
}
"""A decorated callable of each kind: what its body sees; of a builtin, the dtype of its result."""

DECORATED = Product(
    {
        "kind": tuple(CALLABLES),
        "region": ("same", "other", "off"),
        "inside": ("nothing", "other"),
        "calls": ("one", "two"),
    },
)


@promised
def _body_seen(amp: Amp, kind: str, region: str, inside: str) -> list[object]:
    model = _Model(amp)
    if inside != "nothing":
        model.enter(model.made(inside))
    decorating = model.made(region)
    model.enter(decorating)
    model.exit(decorating)
    (state, _, depth, dtype, _), after = model.looks[-2:]
    return [dtype if kind == "builtin" else (state, depth, dtype), (after[0], after[2], after[3])]


@scenario(DECORATED, dtypes="default")
def test_body(amp: Amp, kind: str, region: str, inside: str, calls: str) -> None:
    """The body of what is decorated runs in the region, and the caller's state is back after it (autocast_decorator).

    A generator function's body too, as `torch.no_grad` has it (pytorch#31792); PyTorch says nothing of it here.
    """
    body, after = _body_seen(amp, kind, region, inside)
    with ExitStack() as around:
        if inside != "nothing":
            around.enter_context(_made(amp, inside))
        decorated = CALLABLES[kind](amp, _made(amp, region))
        for call in range(1 if calls == "one" else 2):
            amp.assert_equal(f"what the body sees in call {call}", decorated(), body)
            amp.assert_equal(f"what the caller sees after call {call}", _product(amp), after)


# ---- programs
Step = tuple[str, ...]

PROGRAMS: dict[str, tuple[Step, ...]] = {
    "tasks_in_turn": (("task", "same"), ("task", "other"), ("end", "0", "returns"), ("end", "0", "returns")),
    "streams": (
        ("generator", "same"),
        ("generator", "off"),
        ("coroutine", "other"),
        ("end", "1", "closed"),
        ("end", "0", "raises"),
        ("end", "0", "dropped"),
    ),
    "stack_outlives": (("moved_stack", "other"), ("hooks", "same"), ("end", "0", "returns"), ("end", "0", "returns")),
}
"""Holders are opened with their region, and the n-th of those that are open ends in a way."""


@promised
def _program_seen(amp: Amp, steps: tuple[Step, ...]) -> list[object]:
    model = _Model(amp)
    held: list[Region] = []
    for step in steps:
        if step[0] == "end":
            model.exit(held.pop(int(step[1])))
        else:
            held.append(model.made(step[1]))
            model.enter(held[-1])
    return model.looks


@scenario(steps=named(**PROGRAMS), dtypes="default")
def test_known(amp: Amp, steps: tuple[Step, ...]) -> None:
    """Programs of holders that are written down (autocast_mode.py, __enter__ and __exit__; amp.html: thread-local)."""
    look, promised = _Looking(amp), iter(_program_seen(amp, steps))
    look("at the start", next(promised))
    ends: list[End] = []
    for place, step in enumerate(steps, 1):
        if step[0] == "end":
            ends.pop(int(step[1]))(step[2])
        else:
            ends.append(HOLDERS[step[0]](_made(amp, step[1])))
        look(f"after step {place} ({' '.join(step)})", next(promised))
