"""Programs: torch and the model agree, faults planted in torch are found, and what is rendered runs."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ampcheck.devices.base import Device
from ampcheck.devices.registry import known
from ampcheck.observe.isolation import reset
from ampcheck.programs.regions import (
    Catch,
    ClearCache,
    Decorated,
    Generator,
    InferenceMode,
    NoGrad,
    Op,
    Options,
    Program,
    Raise,
    Reenter,
    Seen,
    Set,
    Thread,
    UseWeight,
    With,
    compare,
    facts,
    known_bugs_hit,
    model,
    render,
    run,
)
from ampcheck.programs.regions.explore import RegionExplorer, second
from ampcheck.programs.regions.strategies import programs, weight_programs
from ampcheck.spec.state import State

CPU = known()["cpu"]
CUDA = known()["virtual:cuda"]
AUTOCAST = torch.amp.autocast_mode.autocast
HERE, OTHER = Options("cpu", "bf16"), Options("cpu", "fp16")
MM = Op("mm", "cpu", ("fp32", "fp32"))
WEIGHT = UseWeight("cpu", "leaf")

EVERY_STEP: Program = (
    Catch((With(HERE, (MM, With(OTHER, (MM, Raise())))),)),
    Decorated(HERE, (WEIGHT, NoGrad((WEIGHT,))), calls=2, around=OTHER),
    Reenter(HERE, (Op("cat", "cpu", ("fp32", "last")),), (ClearCache(), WEIGHT)),
    Generator(Options("cpu", enabled=False, cache_enabled=False), (MM,), (Set("enabled", "cpu", True), MM)),
    With(HERE, (InferenceMode((WEIGHT,)), Thread((With(OTHER, (MM,)),)), UseWeight("cpu", "low"))),
    Set("dtype", "cpu", "fp16"),
    Set("cache_enabled", "cpu", False),
)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    reset({})
    yield
    reset({})


def _difference(program: Program, device: Device = CPU) -> str | None:
    return RegionExplorer(device).difference(program)


# ---- agreement


def test_every_step_does_what_the_model_says() -> None:
    assert _difference(EVERY_STEP) is None


def test_what_the_model_says_of_a_small_program() -> None:
    program = (With(HERE, (MM, With(Options("cpu", enabled=False), (Op("mm", "cpu", ("fp32", "last")),)))),)
    seen = {(s.where, s.what): s.value for s in model(program, facts([CPU]))}
    assert seen["1.1", "dtypes in the kernel of mm on cpu"] == ("bf16", "bf16")
    assert seen["1.1", "casts made for mm on cpu"] == 2
    assert seen["1.1", "result of mm on cpu"] == "bf16"
    assert seen["1.2.1", "dtypes in the kernel of mm on cpu"] == ("fp32", "bf16")
    assert ("1.2.1", "result of mm on cpu") not in seen  # open: implementations refuse or promote
    assert seen["1.2", "state of cpu inside the region"] == State(False, "bf16", True, 2)
    assert seen["end", "state of cpu at the end"] == State(False, "bf16", True, 0)


def test_ops_of_each_policy_on_a_virtual_device() -> None:
    body = (
        Op("mse_loss", "cuda", ("fp16", "fp16")),
        Op("atan2", "cuda", ("fp32", "fp16")),
        Op("sum", "cuda", ("fp16",)),
        Op("bce", "cuda", ("fp32", "fp32")),
        Op("mul", "cuda", ("fp16", "fp64")),
    )
    program = (With(Options("cuda"), body),)
    seen = {(s.where, s.what): s.value for s in model(program, facts([CUDA, CPU]))}
    assert seen["1.1", "dtypes in the kernel of mse_loss on cuda"] == ("fp32", "fp32")
    assert seen["1.2", "dtypes in the kernel of atan2 on cuda"] == ("fp32", "fp32")
    assert seen["1.3", "dtype= of sum on cuda"] == "fp32"
    assert seen["1.4", "bce on cuda"] == "refused"
    assert seen["1.5", "casts made for mul on cuda"] == 0
    assert _difference(program, CUDA) is None


@pytest.mark.parametrize("device", ["cpu", "virtual:mps"])
def test_random_programs_agree(device: str) -> None:
    for strategy in (programs, weight_programs):
        assert RegionExplorer(known()[device]).explore(strategy) is None


def test_an_uncaught_exception_ends_a_program() -> None:
    seen = model((With(HERE, (Raise(),)), MM), facts([CPU]))
    assert Seen("end", "exception", "not caught") in seen
    assert not any("mm" in s.what for s in seen)
    assert _difference((With(HERE, (Raise(),)), MM)) is None


def test_a_run_leaves_no_state() -> None:
    run((Set("enabled", "cpu", True), Set("dtype", "cpu", "fp16"), Set("cache_enabled", "cpu", False)), [CPU])
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert torch.is_autocast_cache_enabled()


# ---- known deviations


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ((Reenter(HERE, (), (), nested=True),), "one region object inside itself"),
        ((With(HERE, (WEIGHT, With(OTHER, (WEIGHT,)))),), "one weight in two lower precisions"),
        ((With(HERE, (Op("cat", "cpu", ("fp16", "fp32")),)),), "promote with the other lower precision"),
        ((InferenceMode((Set("enabled", "cpu", True),)),), "enabled set in inference mode"),
    ],
)
def test_known_deviations_are_told(program: Program, words: str) -> None:
    assert known_bugs_hit(program, facts([CPU])) == {words}


def test_a_program_without_known_deviations() -> None:
    assert known_bugs_hit(EVERY_STEP, facts([CPU])) == set()


# ---- planted faults


def _exit_keeps(what: str) -> Any:
    right = AUTOCAST.__exit__

    def leave(self: Any, *error: Any) -> Any:
        inside = (torch.get_autocast_dtype(self.device), torch.is_autocast_enabled(self.device))
        out = right(self, *error)
        if what == "dtype":
            torch.set_autocast_dtype(self.device, inside[0])
        elif what == "enabled" and error[0] is not None:
            torch.set_autocast_enabled(self.device, inside[1])
        elif what == "depth":
            torch.autocast_increment_nesting()
        return out

    return leave


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("dtype", "after the region is off in fp16 with the cache on, depth 0; expected off in bf16"),
        ("enabled", "after the region is on in"),
        ("depth", "depth 1; expected off in bf16 with the cache on, depth 0"),
    ],
)
def test_a_wrong_exit_is_found(what: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AUTOCAST, "__exit__", _exit_keeps(what))
    found = RegionExplorer(CPU).explore(programs)
    assert found is not None
    sentence, program = found
    assert words in sentence
    assert len(program) == 1, "the program was not made small"


def test_a_cache_that_is_never_dropped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: None)
    found = RegionExplorer(CPU).explore(weight_programs)
    assert found is not None
    assert "casts made for mm on cpu is 1; expected 2" in found[0]


def test_a_cast_that_is_not_made_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_autocast_enabled", lambda *arguments: None)
    sentence = _difference((With(HERE, (MM,)),))
    assert sentence == (
        "step 1: state of cpu inside the region is off in bf16 with the cache on, depth 1; "
        "expected on in bf16 with the cache on, depth 1"
    )


def test_a_wrong_op_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CPU.policies()
    monkeypatch.setattr(type(CPU), "policies", lambda self: {**right, "mm": "upcast"})
    assert _difference((With(HERE, (MM,)),)) == (
        "step 1.1: dtypes in the kernel of mm on cpu is bf16, bf16; expected fp32, fp32"
    )


def test_an_exception_of_torch_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def enter(self: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(AUTOCAST, "__enter__", enter)
    assert _difference((With(HERE, ()),)) == ("running the program raised RuntimeError: broken; expected it to run")


def test_a_nightly_finding_names_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ampcheck.programs.regions.explore.NIGHTLY", 40)
    monkeypatch.setattr(AUTOCAST, "__exit__", _exit_keeps("depth"))
    found = RegionExplorer(CPU, nightly=True, seed="7").explore(programs)
    assert found is not None
    assert found[0].endswith("(found with --hypothesis-seed=7)")


# ---- comparing


def test_compare_says_what_differs() -> None:
    one, two = Seen("1", "result of mm on cpu", "bf16"), Seen("2", "casts made for mm on cpu", 2)
    assert compare([one, two], [one, two]) is None
    assert compare([one], [one, two]) == "the program ended early; expected casts made for mm on cpu 2 at step 2"
    assert compare([one, two], [one]) == ("step 2: casts made for mm on cpu is 2; expected the program to have ended")
    assert compare([two], [one]) == (
        "step 2: casts made for mm on cpu is 2; expected to see result of mm on cpu at step 1"
    )


# ---- rendering


def _printed(source: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(source, "<rendered>", "exec"), {"__name__": "rendered"})
    return out.getvalue()


def test_rendered_programs_run() -> None:
    lines = _printed(render(EVERY_STEP, [CPU])).splitlines()
    assert len(lines) == len(model(EVERY_STEP, facts([CPU])))
    assert all(line.startswith("ok  ") for line in lines), lines
    text = "\n".join(lines)
    assert "step 1.1: state of cpu inside the region | got (True, 'bf16', True, 1) | expected" in text
    assert "step 1.1.2: state of cpu inside the region | got (True, 'fp16', True, 2) | expected" in text
    assert "step 5.2: state of cpu in a new thread | got (False, 'bf16', True, 0) | expected" in text
    assert "dtypes in the kernel of mm on cpu | got ('bf16', 'bf16')" in text


def test_rendered_programs_say_what_runs_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first FAIL of a rendered program is the difference that a run finds."""
    program: Program = (Catch((With(HERE, (With(OTHER, (MM,)), Raise())),)), MM)
    source = render(program, [CPU])
    assert "FAIL" not in _printed(source)
    monkeypatch.setattr(AUTOCAST, "__exit__", lambda *_: torch.autocast_decrement_nesting() and None)
    found = compare(run(program, [CPU]), model(program, facts([CPU])))
    printed = _printed(source)
    reset({})
    first = next(line for line in printed.splitlines() if line.startswith("FAIL "))
    assert found is not None
    assert found.startswith(first.removeprefix("FAIL ").partition(" | ")[0])


def test_a_virtual_device_is_rendered_with_fake_tensors() -> None:
    source = render((With(Options("cuda"), (Op("sum", "cuda", ("fp16",)),)),), [CUDA, CPU])
    compile(source, "<rendered>", "exec")
    assert "FakeTensorMode" in source
    assert "amp_definitely_not_available" in source
    assert "op('1.1', 'sum', 'sum', 'cuda', torch.sum, new('cuda', torch.float16))" in source


def test_a_second_device_is_of_another_type() -> None:
    for device in (CPU, CUDA):
        assert second(device).type != device.type
