"""Programs of regions: torch and the model agree, faults in torch are found, and reproductions say what runs see."""

import contextlib
import io
from collections.abc import Callable, Iterator
from functools import partial
from textwrap import dedent
from typing import Any

import pytest
import torch

from ampcheck.devices.registry import known
from ampcheck.observe.isolation import reset
from ampcheck.programs.regions import RegionExplorer, program, programs, weight_programs
from ampcheck.programs.search import Search

CPU = known()["cpu"]
CUDA = known()["virtual:cuda"]
AUTOCAST = torch.amp.autocast_mode.autocast
HERE, OTHER = "amp.autocast('cpu', dtype=torch.bfloat16)", "amp.autocast('cpu', dtype=torch.float16)"
NEW = "amp.new('cpu', torch.float32)"
MM, WEIGHT = f"amp.op('cpu', torch.mm, {NEW}, {NEW})", f"amp.op('cpu', torch.mm, {NEW}, amp.weight('cpu', 'leaf'))"


def _program(text: str) -> str:
    return program(dedent(text).strip().splitlines())


EVERY_STEP = _program(f"""
    try:
        with {HERE}:
            {MM}
            with {OTHER}:
                {MM}
                raise PlannedError
    except PlannedError:
        amp.caught()
    @{HERE}
    def decorated():
        {WEIGHT}
        with amp.no_grad():
            {WEIGHT}
    with {OTHER}:
        decorated()
        decorated()
    region = {HERE}
    with region:
        amp.op('cpu', torch.cat, {NEW}, amp.last('cpu'))
    with region:
        amp.clear_cache()
        {WEIGHT}
    def steps():
        with amp.autocast('cpu', enabled=False, cache_enabled=False):
            {MM}
            yield
    with closing(steps()) as running:
        for _ in running:
            amp.set_enabled('cpu', True)
            {MM}
    def task():
        amp.look('in a new thread')
        with {OTHER}:
            {MM}
    with {HERE}:
        with amp.inference_mode():
            {WEIGHT}
        amp.in_thread(task)
        amp.op('cpu', torch.mm, {NEW}, amp.weight('cpu', 'low'))
    amp.set_dtype('cpu', torch.float16)
    amp.set_cache_enabled(False)
""")
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
    assert seen[4, "dtype= of sum on cuda"] == "fp32"
    assert seen[5, "binary_cross_entropy on cuda"] == "refused"
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
    assert found is not None
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
    assert found is not None
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
    assert found is not None
    assert found.startswith(first.removeprefix("FAIL ").partition(" | ")[0])
