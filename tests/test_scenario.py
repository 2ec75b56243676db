"""The scenarios about regions: green on torch as it is, and each goes red, in the right words, on a planted fault."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ampcheck.deviations import Waivers
from ampcheck.devices.registry import known
from ampcheck.ids import rule_of
from ampcheck.isolation import reset
from ampcheck.scenario import Amp

FAMILIES = ("nesting", "context", "decorator", "exceptions", "threads")
AUTOCAST = torch.amp.autocast_mode.autocast
INIT, ENTER, EXIT, CALL = AUTOCAST.__init__, AUTOCAST.__enter__, AUTOCAST.__exit__, AUTOCAST.__call__


def scenarios(family: str) -> dict[str, Callable[..., None]]:
    """The scenarios of a suite file by name, those with parameters bound to the first and the last of them."""
    folder = Path(__file__).parents[1] / "suites" / "eager"
    stems = [path.stem for path in sorted(folder.glob(f"test_{family}*.py")) if rule_of(path.stem) == family]
    out = {}
    for name, function in [item for stem in stems for item in vars(import_module(f"suites.eager.{stem}")).items()]:
        if not name.startswith("test_"):
            continue
        parametrize = [mark.args for mark in function.pytestmark if mark.name == "parametrize"]
        names = [argument for argument, _ in parametrize]
        values = [list(values) for _, values in parametrize]
        for number, chosen in enumerate(itertools.product(*[[v[0], v[-1]] for v in values])):
            out[f"{name}{number or ''}"] = functools.partial(function, **dict(zip(names, chosen, strict=True)))
    return out


def suits(function: Callable[..., None], device: str) -> bool:
    """Whether a scenario runs on a device."""
    inner: Any = function.func if isinstance(function, functools.partial) else function
    options = next(mark.kwargs for mark in inner.pytestmark if mark.name == "scenario")
    chosen = known()[device]
    return (not options["types"] or chosen.type in options["types"]) and (chosen.has_values or not options["values"])


def differences(function: Callable[..., None], device: str = "cpu", dtype: str = "fp16") -> list[str]:
    """What a scenario finds; an exception that leaves it counts."""
    chosen = known()[device]
    amp = Amp(chosen, dtype)
    reset({})
    try:
        with chosen.running():
            function(amp)
    except BaseException as error:  # KeyboardInterrupt is among what scenarios raise
        amp.differences.append(f"{type(error).__name__}: {error}")
    finally:
        reset({})
    return amp.differences


def scenario_of(family: str, name: str) -> Callable[..., None]:
    return scenarios(family)[f"test_{name}"]


# ---- faults


def exit_that(do: Callable[[Any, tuple[Any, ...], Any], None]) -> dict[str, Any]:
    """An __exit__ that does something after the right one; `do` gets the region, the exception and the state inside."""

    def leave(self: Any, *error: Any) -> Any:
        inside = (
            torch.is_autocast_enabled(self.device),
            torch.get_autocast_dtype(self.device),
            torch.is_autocast_cache_enabled(),
        )
        out = EXIT(self, *error)
        do(self, error, inside)
        return out

    return {"__exit__": leave}


def enter_that(do: Callable[[Any, Any], None], value: Any = None) -> dict[str, Any]:
    def enter(self: Any) -> Any:
        before = (torch.is_autocast_enabled(self.device), torch.get_autocast_dtype(self.device))
        out = ENTER(self)
        do(self, before)
        return out if value is None else value

    return {"__enter__": enter}


def only_on_error(do: Callable[[Any, Any], None]) -> dict[str, Any]:
    return exit_that(lambda region, error, inside: do(region, inside) if error and error[0] is not None else None)


def keeps_enabled(region: Any, inside: Any) -> None:
    torch.set_autocast_enabled(region.device, inside[0])


def swallowing(self: Any, *error: Any) -> bool:
    EXIT(self, *error)
    return True


def deciding_late(self: Any, device_type: Any, dtype: Any = None, *rest: Any, **options: Any) -> None:
    INIT(self, device_type, dtype, *rest, **options)
    self.late = dtype is None
    self.late_cache = options.get("cache_enabled") is None and len(rest) < 2


def entering_late(self: Any) -> Any:
    if self.late:
        self.fast_dtype = torch.get_autocast_dtype(self.device)
    if self.late_cache:
        self._cache_enabled = torch.is_autocast_cache_enabled()
    return ENTER(self)


def changing_at_construction(self: Any, *arguments: Any, **options: Any) -> None:
    INIT(self, *arguments, **options)
    torch.set_autocast_dtype(self.device, self.fast_dtype)
    torch.set_autocast_enabled(self.device, self._enabled)


def swapped(self: Any, device_type: Any, dtype: Any = None, cache_enabled: Any = None, enabled: Any = True) -> None:
    INIT(self, device_type, dtype, enabled, cache_enabled if cache_enabled is not None else True)
    if isinstance(device_type, str):
        self._cache_enabled = not self._cache_enabled


def taking_anything(self: Any, device_type: Any, *rest: Any, **options: Any) -> None:
    INIT(self, device_type if isinstance(device_type, str) else "cpu", *rest, **options)


def not_a_wrapper(self: Any, function: Any) -> Any:
    return lambda *arguments, **options: (CALL(self, function)(*arguments, **options), None)[1]


def undecorated(self: Any, function: Any) -> Any:
    return function


def open_ended(self: Any, function: Any) -> Any:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        self.__enter__()
        return function(*arguments, **options)

    return call


def ending_late(self: Any, function: Any) -> Any:
    """Leaves the region twice."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with self:
            out = function(*arguments, **options)
        torch.set_autocast_dtype(self.device, torch.float64)
        torch.autocast_increment_nesting()
        return out

    return call


def casting(self: Any, function: Any) -> Any:
    """A decorator that casts what goes in and comes out, as custom_fwd does."""

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(self.fast_dtype)
        return type(value)(map(cast, value)) if type(value) is tuple else value

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with self:
            return cast(function(*map(cast, arguments), **options))

    return call


RUN = threading.Thread.run


def inheriting(self: threading.Thread) -> None:
    """A thread that starts enabled, in another dtype, without the cache and one level deep."""
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float64)
    torch.set_autocast_cache_enabled(False)
    torch.autocast_increment_nesting()
    RUN(self)


def is_enabled_reversed(*arguments: Any) -> bool:
    return not torch._C._is_any_autocast_enabled()


MM, BACKWARD = torch.mm, torch.Tensor.backward


def backward_outside_only(self: torch.Tensor) -> None:
    if torch.is_autocast_enabled(self.device.type):
        raise RuntimeError("backward in a region")
    BACKWARD(self)


def never_cast(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch._C._DisableAutocast():
        return MM(a.float(), b.float())


@contextmanager
def patched(target: Any, **wrong: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in wrong.items():
            stack.enter_context(patch.object(target, name, value))
        yield


def methods(**wrong: Any) -> Callable[[], AbstractContextManager[None]]:
    return lambda: patched(AUTOCAST, **wrong)


def on_torch(**wrong: Any) -> Callable[[], AbstractContextManager[None]]:
    return lambda: patched(torch, **wrong)


FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "exit keeps enabled": methods(**exit_that(lambda r, e, inside: torch.set_autocast_enabled(r.device, inside[0]))),
    "exit keeps dtype": methods(**exit_that(lambda r, e, inside: torch.set_autocast_dtype(r.device, inside[1]))),
    "exit keeps cache_enabled": methods(**exit_that(lambda r, e, inside: torch.set_autocast_cache_enabled(inside[2]))),
    "exit keeps the depth": methods(**exit_that(lambda r, e, inside: torch.autocast_increment_nesting() and None)),
    "exit drops what is kept": methods(**exit_that(lambda r, e, inside: torch.clear_autocast_cache())),
    "exit turns other types off": methods(
        **exit_that(lambda r, e, i: [torch.set_autocast_enabled(t, False) for t in ("cpu", "xpu")] and None)
    ),
    "exit on an error keeps enabled": methods(**only_on_error(keeps_enabled)),
    "exit swallows": methods(__exit__=swallowing),
    "exit of what was not entered": methods(__exit__=lambda self, *e: torch.set_autocast_enabled(self.device, False)),
    "enter sets no dtype": methods(**enter_that(lambda r, before: torch.set_autocast_dtype(r.device, before[1]))),
    "enter does not enable": methods(**enter_that(lambda r, before: torch.set_autocast_enabled(r.device, before[0]))),
    "enter sets no cache_enabled": methods(**enter_that(lambda r, b: torch.set_autocast_cache_enabled(True))),
    "enter sets other types": methods(
        **enter_that(lambda r, b: [torch.set_autocast_enabled(t, r._enabled) for t in ("cpu", "xpu")] and None)
    ),
    "enter returns something else": methods(**enter_that(lambda r, before: None, value=object())),
    "options decided at entry": methods(__init__=deciding_late, __enter__=entering_late),
    "construction changes the state": methods(__init__=changing_at_construction),
    "arguments in another order": methods(__init__=swapped),
    "any device type is taken": methods(__init__=taking_anything),
    "decorator does nothing": methods(__call__=undecorated),
    "decorator loses name and result": methods(__call__=not_a_wrapper),
    "decorator never leaves": methods(__call__=open_ended),
    "decorator leaves too late": methods(__call__=ending_late),
    "decorator casts": methods(__call__=casting),
    "nothing is dropped": on_torch(clear_autocast_cache=lambda: None),
    "nothing is cast": on_torch(mm=never_cast),
    "backward raises in a region": lambda: patched(torch.Tensor, backward=backward_outside_only),
    "the state is misreported": on_torch(is_autocast_enabled=is_enabled_reversed),
    "threads inherit": lambda: patched(threading.Thread, run=inheriting),
    "to_thread stays": lambda: patched(asyncio, to_thread=lambda call: asyncio.sleep(0, call())),
}

DEVIATING = {
    "nesting": ("test_one_object_inside_itself", "test_one_object_around_another"),
    "decorator": ("test_recursion", "test_one_region_for_two_functions", "test_called_in_two_threads_at_once"),
    "threads": ("test_one_region_object_in_two_threads",),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_green_without_a_fault(family: str) -> None:
    for name, function in scenarios(family).items():
        if suits(function, "cpu") and name not in DEVIATING.get(family, ()):
            assert differences(function) == [], name


@pytest.mark.parametrize("family", FAMILIES)
def test_every_scenario_can_fail(family: str) -> None:
    """Each scenario finds at least one of the faults, and says so in words."""
    waiting = {
        name: f for name, f in scenarios(family).items() if suits(f, "cpu") and name not in DEVIATING.get(family, ())
    }
    for plant in FAULTS.values():
        for name, function in list(waiting.items()):
            with plant():
                if differences(function):
                    del waiting[name]
    assert list(waiting) == []


@pytest.mark.parametrize("family", list(DEVIATING))
def test_known_deviations_fail_as_described(family: str) -> None:
    waivers = Waivers([known()["cpu"]])
    for name in DEVIATING[family]:
        found = differences(scenarios(family)[name])
        deviation = waivers.of("cpu", f"{family}/{name.removeprefix('test_')}-fp16-cpu")
        assert deviation is not None, name
        assert found, f"{name} passes, so deviation {deviation.id} is stale"
        assert deviation.explains("\n".join(found)), name


@pytest.mark.parametrize("family", list(DEVIATING))
def test_known_deviations_pass_once_mended(family: str) -> None:
    """A region that keeps a stack of states for each thread, as the model does, passes them."""
    saved: dict[tuple[int, int], list[dict[str, Any]]] = {}
    kept = ("prev", "prev_cache_enabled", "prev_fastdtype")

    def enter(self: Any) -> Any:
        out = ENTER(self)
        saved.setdefault((id(self), threading.get_ident()), []).append({name: getattr(self, name) for name in kept})
        return out

    def leave(self: Any, *error: Any) -> Any:
        vars(self).update(saved[id(self), threading.get_ident()].pop())
        return EXIT(self, *error)

    with patched(AUTOCAST, __enter__=enter, __exit__=leave):
        for name in DEVIATING[family]:
            assert differences(scenarios(family)[name]) == [], name


@pytest.mark.parametrize(
    ("fault", "family", "name", "words"),
    [
        (
            "exit keeps dtype",
            "context",
            "restores_on_exit",
            "state after the region: got (False, torch.float16, True); expected (False, torch.bfloat16, True)",
        ),
        (
            "enter does not enable",
            "context",
            "restores_on_exit",
            "dtype a product runs in: got torch.float32; expected torch.float16",
        ),
        ("exit keeps the depth", "nesting", "deep", "nesting depth after sixty regions: got 120; expected 0"),
        (
            "exit keeps enabled",
            "nesting",
            "documented_example",
            "dtype of g: got torch.float32; expected torch.float16",
        ),
        (
            "decorator does nothing",
            "decorator",
            "function",
            "state and dtype of a product inside, call 0: got ((False, torch.bfloat16, True), torch.float32)",
        ),
        (
            "exit on an error keeps enabled",
            "exceptions",
            "leaves_the_region",
            "state after the exception: got (True, torch.bfloat16, True); expected (False, torch.bfloat16, True)",
        ),
        (
            "exit swallows",
            "exceptions",
            "leaves_the_region",
            "what came out of the region: got 'nothing'; expected 'ValueError'",
        ),
        (
            "threads inherit",
            "threads",
            "starts_outside",
            "state, depth and dtype of a product in a thread: got ((True, torch.float64, False), 1",
        ),
    ],
)
def test_words(fault: str, family: str, name: str, words: str) -> None:
    with FAULTS[fault]():
        found = differences(scenario_of(family, name))
    assert any(words in line for line in found), found


@pytest.mark.parametrize("device", ["virtual:cuda", "virtual:mps"])
def test_virtual_devices_find_faults_too(device: str) -> None:
    function = scenario_of("nesting", "ops_on_two_devices")
    assert differences(function, device) == []
    with FAULTS["exit turns other types off"]():
        found = differences(scenario_of("nesting", "two_device_types"), device)
    assert "state of cpu after the inner region: got (False, torch.bfloat16); expected (True, torch.bfloat16)" in found
    with FAULTS["enter sets other types"]():
        found = differences(function, device)
    assert any("dtype of a product on the CPU in this device's region" in line for line in found), found


# ---- the helpers of Amp


def test_depth_and_threads() -> None:
    amp = Amp(known()["cpu"], "bf16")
    with amp.region(), amp.region(enabled=False):
        assert amp.depth() == 2
        assert amp.thread(amp.depth) == 0
    assert amp.depth() == 0
    with pytest.raises(KeyError, match="planned"):
        amp.thread(lambda: {}["planned"])


def test_interleaving_gives_turns() -> None:
    amp = Amp(known()["virtual:cuda"], "fp16")
    found = []

    def worker(name: str) -> Iterator[None]:
        for _ in range(2):
            found.append((name, amp.rand(2).device.type, threading.get_ident()))
            yield

    amp.interleave(lambda: worker("a"), lambda: worker("b"))
    assert [name for name, _, _ in found] == ["a", "b", "a", "b"]
    assert {device for _, device, _ in found} == {"cuda"}
    assert found[0][2] == found[2][2] != found[1][2]


@pytest.mark.parametrize("move", [torch.autocast_increment_nesting, torch.autocast_decrement_nesting])
def test_reset_mends_the_depth(move: Callable[[], int]) -> None:
    amp = Amp(known()["cpu"], "bf16")
    for _ in range(3):
        move()
    assert amp.depth() != 0
    reset({})
    assert amp.depth() == 0
