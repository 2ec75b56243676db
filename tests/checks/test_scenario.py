"""The scenarios about regions: green on torch as it is, and each goes red, in the right words, on a planted fault."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from ampcheck.checks.scenario import Amp
from ampcheck.devices.registry import known
from ampcheck.observe.isolation import reset
from ampcheck.runner.deviations import KnownDeviations, after_deviations
from tests.cli_support import ROOT
from tests.region_faults import AUTOCAST, ENTER, EXIT, FAULTS, patched

FAMILIES = ("nesting", "context", "decorator", "exceptions", "threads")


def scenarios(family: str) -> dict[str, Callable[..., None]]:
    """The scenarios of a suite file by name, those with parameters bound to the first and the last of them."""
    folder = ROOT / "suites" / "eager"
    stems = [path.stem for path in sorted(folder.glob(f"test_{family}*.py"))]
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
        with chosen.activate():
            function(amp)
    except BaseException as error:  # KeyboardInterrupt is among what scenarios raise
        amp.differences.append(f"{type(error).__name__}: {error}")
    finally:
        reset({})
    return amp.differences


def scenario_of(family: str, name: str) -> Callable[..., None]:
    return scenarios(family)[f"test_{name}"]


DEVIATING = {
    "nesting": ("test_one_object_inside_itself", "test_one_object_around_another"),
    "decorator": ("test_recursion", "test_one_region_for_two_functions", "test_called_twice_at_once"),
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
    deviations = KnownDeviations([known()["cpu"]])
    for name in DEVIATING[family]:
        found = differences(scenarios(family)[name])
        entries = deviations.of("cpu", f"{family}/{name.removeprefix('test_')}-fp16-cpu")
        assert entries, name
        assert found, f"{name} passes, so {entries} are stale"
        assert after_deviations("fail", found, entries)[0] == "deviation", name


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
