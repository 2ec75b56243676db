"""Random programs of regions and of scalers."""

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from textwrap import dedent
from typing import Any

import pytest
import torch

from ampcheck.devices.registry import known
from ampcheck.observe.isolation import reset
from ampcheck.programs.regions import RegionExplorer, program, programs, weight_programs
from ampcheck.programs.scaler import (
    OPTIMIZERS,
    OptimizerPlan,
    ParameterPlan,
    ScalerExplorer,
    ScalerProgram,
    ScalerRun,
    backward,
    setup,
)
from ampcheck.programs.search import Search
from tests.cli_support import PROGRAMS, python

CPU = known()["cpu"]
CUDA = known()["virtual:cuda"]
AUTOCAST = torch.amp.autocast_mode.autocast
HERE, OTHER = "amp.autocast('cpu', dtype=torch.bfloat16)", "amp.autocast('cpu', dtype=torch.float16)"
NEW = "amp.new('cpu', torch.float32)"
MM, WEIGHT = f"amp.op('cpu', torch.mm, {NEW}, {NEW})", f"amp.op('cpu', torch.mm, {NEW}, amp.weight('cpu', 'leaf'))"


def _program(text: str) -> str:
    return program(dedent(text).strip().splitlines())


EVERY_STEP = _program(PROGRAMS["regions-every_step"].format(HERE=HERE, MM=MM, NEW=NEW, OTHER=OTHER, WEIGHT=WEIGHT))
ONE_PRODUCT = _program(f"with {HERE}:\n    {MM}")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    reset({})
    yield
    reset({})


# ---- agreement


def test_ops_of_each_policy_on_a_virtual_device() -> None:
    def op(name: str, *dtypes: str) -> str:
        inputs = [f"amp.new('cuda', torch.{dtype})" for dtype in dtypes]
        return f"amp.op('cuda', torch.{name}, {', '.join(inputs)})"

    text = _program(f"""
        with amp.autocast('cuda'):
            {op("nn.functional.mse_loss", "float16", "float16")}
            {op("atan2", "float32", "float16")}
            {op("sum", "float16")}
            {op("nn.functional.binary_cross_entropy", "float32", "float32")}
            {op("mul", "float16", "float64")}""")
    seen = {(line, what): value for line, what, value in RegionExplorer(CUDA).promised(text).seen}
    assert seen[2, "dtypes in the kernel of mse_loss on cuda"] == ("fp32", "fp32")
    assert seen[3, "dtypes in the kernel of atan2 on cuda"] == ("fp32", "fp32")
    assert (seen[4, "dtype= of sum on cuda"], seen[5, "binary_cross_entropy on cuda"]) == ("fp32", "refused")
    assert seen[6, "casts made for mul on cuda"] == 0
    assert RegionExplorer(CUDA).difference(text) is None


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (f"region = {HERE}\nwith region:\n    with region:\n        pass", "one region object inside itself"),
        (f"with {HERE}:\n    {WEIGHT}\n    with {OTHER}:\n        {WEIGHT}", "one weight in two lower precisions"),
        (
            f"with {HERE}:\n    amp.op('cpu', torch.cat, amp.new('cpu', torch.float16), {NEW})",
            "promote with the other lower precision",
        ),
        ("with amp.inference_mode():\n    amp.set_enabled('cpu', True)", "enabled set in inference mode"),
        (EVERY_STEP.partition("\n")[2], ""),
    ],
)
def test_known_bugs_are_recognized(lines: str, words: str) -> None:
    assert RegionExplorer(CPU).promised(_program(lines)).known_bugs == ({words} if words else set())


# ---- faults


def _wrong_exit(what: str) -> Callable[..., Any]:
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


def _broken(*_: object) -> None:
    raise RuntimeError("broken")


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "draw", "words"),
    [
        (AUTOCAST, "__exit__", partial(_wrong_exit, "dtype"), programs, "off in fp16 with the cache on, depth 0"),
        (AUTOCAST, "__exit__", partial(_wrong_exit, "enabled"), programs, "after the region is on in"),
        (AUTOCAST, "__exit__", partial(_wrong_exit, "depth"), programs, "depth 1; expected off in bf16 with the cache"),
        (torch, "clear_autocast_cache", lambda: lambda: None, weight_programs, "casts made for mm on cpu is 1; exp"),
        (AUTOCAST, "__enter__", lambda: _broken, programs, "the program raised RuntimeError: broken; exp"),
    ],
)
def test_a_fault_is_found_by_a_small_program(
    owner: Any, name: str, wrong: Any, draw: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, wrong())
    found = RegionExplorer(CPU).explore(draw)
    assert words in found[0]
    assert len(found[1].splitlines()) < 10


def test_a_difference_names_line_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_autocast_enabled", lambda *arguments: None)
    assert RegionExplorer(CPU).difference(ONE_PRODUCT) == (
        "line 1: state of cpu inside the region is off in bf16 with the cache on, depth 1; "
        "expected on in bf16 with the cache on, depth 1"
    )


def test_a_nightly_finding_names_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AUTOCAST, "__exit__", _wrong_exit("depth"))
    found = RegionExplorer(CPU, Search(nightly=True, given="7")).explore(programs)
    assert found[0].endswith("(found with --hypothesis-seed=7)")


# ---- reproductions


def _printed(source: str) -> list[str]:
    out, names = io.StringIO(), dict[str, Any](__name__="reproduction")
    with contextlib.redirect_stdout(out):
        exec(compile(source, "<reproduction>", "exec"), names)
    names["fake"].__exit__(None, None, None)
    return out.getvalue().splitlines()


def test_a_reproduction_says_what_the_run_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = RegionExplorer(CPU)
    source = explorer.script(EVERY_STEP)
    lines = _printed(source)
    assert len(lines) == len(explorer.promised(EVERY_STEP).seen)
    assert all(line.startswith("ok  ") for line in lines), lines
    reset({})
    monkeypatch.setattr(AUTOCAST, "__exit__", lambda *_: torch.autocast_decrement_nesting() and None)
    found = explorer.difference(EVERY_STEP)
    first = next(line for line in _printed(source) if line.startswith("FAIL "))
    assert found.startswith(first.removeprefix("FAIL ").partition(" | ")[0])


ON_CPU = ParameterPlan("cpu")
ONE = OptimizerPlan("sgd", ((ON_CPU,),))
RELOADED = "scaler = reload(GradScaler('cpu', init_scale=3.0, growth_factor=3.0, growth_interval=7), scaler)"
LINES = {
    "backward": backward(0, ONE)[0],
    "overflow": backward(0, ONE, "forward", 0, "nan")[0],
    "unscale": "scaler.unscale_(o0)",
    "step": "scaler.step(o0)",
    "update": "scaler.update()",
    "set": "scaler.update(8.0)",
    "zero": "o0.zero_grad()",
    "pickle": "scaler = loads(dumps(scaler))",
    "reload": RELOADED,
}


@pytest.mark.parametrize("first", list(LINES))
def test_torch_does_as_the_reference_in_all_orders(first: str) -> None:
    """Every sequence of four calls, refused ones among them."""
    made = setup([ONE], "cpu", "init_scale=4.0, growth_interval=2")
    for rest in itertools.product(LINES, repeat=3):
        lines = tuple(LINES[name] for name in (first, *rest))
        assert ScalerRun(ScalerProgram(made, lines, watched=rest[0] == first)).difference() is None


PLANS = (
    OptimizerPlan("momentum", ((ON_CPU, ParameterPlan("cpu", "bf16")), (ParameterPlan("cpu", "fp64"),))),
    OptimizerPlan("sgd", ((ParameterPlan("cpu", kind="sparse"), ParameterPlan("cpu", kind="unused")),)),
    OptimizerPlan("fused", ((ON_CPU,),)),
    OptimizerPlan("adam", ((ON_CPU, ParameterPlan("cpu", kind="frozen")),)),
    OptimizerPlan("rmsprop", ((ON_CPU,),)),
)
EVERY = ScalerProgram(
    setup(PLANS, "cpu", "growth_interval=1"),
    (
        *(line for number, plan in enumerate(PLANS) for line in backward(number, plan)),
        "scaler.unscale_(o0)",
        "clip(o0)",
        *(f"scaler.step(o{number})" for number in range(5)),
        "scaler.step(o0)",
        "scaler = loads(dumps(scaler))",
        "scaler.update()",
        *(f"o{number}.zero_grad(set_to_none={number % 2 == 0})" for number in range(5)),
        "corrupt_grad(p1_0, inf)",  # sparse and set to zero, so it has no element
        *backward(0, PLANS[0], "loss", 2, "inf"),
        *backward(1, PLANS[1], "forward", 0, "nan"),
        "corrupt_grad(p1_0, -inf)",
        *backward(2, PLANS[2], "forward", 0, "-inf"),
        *(f"scaler.step(o{number})" for number in range(5)),
        "scaler.update()",
        "scaler.step(o4, closure=None)",
        "scaler.set_growth_factor(4.0)",
        "scaler.load_state_dict({**scaler.state_dict(), 'scale': 16.0, '_growth_tracker': 1})",
        RELOADED,
        "scaler = deepcopy(scaler)",
        "scaler.update(2.0)",
        *backward(3, PLANS[3]),
        "scaler.update(torch.full((), 32.0, device='cpu'))",
        "scaler.step(o3)",
        "scaler.update()",
    ),
)


def test_a_program_with_everything() -> None:
    assert {plan.kind for plan in PLANS} == set(OPTIMIZERS)
    run = ScalerRun(EVERY)
    assert run.difference() is None
    assert run.compared > 600


def test_a_fault_of_a_scaler_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, "_maybe_opt_step", lambda self, optimizer, *_: optimizer.step())
    found = ScalerExplorer(known()["cpu"]).explore(orderly=True)
    assert len(found[1].lines) <= 5
    assert "scaler.step(o0)" in found[1].lines


def test_a_difference_names_the_line_and_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, "_maybe_opt_step", lambda self, optimizer, *_: optimizer.step())
    made = setup([ONE], "cpu", "init_scale=4.0")
    harmless = LINES["backward"], LINES["step"], LINES["overflow"], LINES["zero"], LINES["update"]
    assert ScalerRun(ScalerProgram(made, harmless)).difference() is None
    found = ScalerRun(ScalerProgram(made, (LINES["overflow"], LINES["step"]))).difference()
    assert found.startswith("step 2, scaler.step(o0): parameter 0 of optimizer 0, which had no step is")
    assert found.endswith("; the watch says: step 1 of optimizer0 was taken")


def test_a_reproduction_runs_and_shows_what_happens() -> None:
    script = ScalerExplorer(known()["cpu"]).script(EVERY)
    assert "ampcheck" not in script
    said = python("-c", script)
    assert said.count("raised") == 5
    assert "'scale': 131072.0" in said
