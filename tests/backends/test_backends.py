"""Backends as others write them are judged rightly with the faults they have; tests/faults injects more into others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.support import passed, red, run, start

# ---- one that has autocast of its own


@pytest.mark.nightly
def test_the_backend_is_as_it_promises(tmp_path: Path) -> None:
    rules = ("downcast", "upcast", "optdtype", "append", "promote", "banned", "context", "state", "defaults", "errors")
    results = run(tmp_path, "slowpoke", "slowpoke", *(f"--rule={rule}" for rule in rules))
    assert red(results) == []
    assert {result.rule for result in passed(results)} == set(rules)
    assert len(passed(results)) > 2900


@pytest.mark.nightly
def test_a_backend_without_a_weight_cache_is_told(tmp_path: Path) -> None:
    found = red(run(tmp_path, "slowpoke", "slowpoke", "--rule=cache"))
    assert any("casts of a leaf used by three products: got 3; expected 1" in result.message for result in found)


@pytest.mark.nightly
def test_a_planted_mistake_is_named(tmp_path: Path) -> None:
    found = red(run(tmp_path, "slowpoke", "slowpoke", "--op=linear", SLOWPOKE_FAULT="linear"))
    assert {result.rule for result in found} == {"downcast"}
    words = "argument 0 of aten::linear was given as fp32 and reached the kernel as fp32"
    assert any(words in result.message for result in found), found[0].message
    assert all("import slowpoke" in result.torch for result in found)


# ---- unfinished ones


def test_a_backend_without_bfloat16_is_told(tmp_path: Path) -> None:
    options = ("--device=halfonly", "--device-module=halfonly", "--op=mm", "--rule=downcast")
    done = start(tmp_path, "-m", "ampcheck", "run", *options)
    assert done.returncode == 2
    (sentence,) = done.stderr.strip().splitlines()
    for words in ("'halfonly'", "copy of bf16", "RuntimeError: halfonly has no bfloat16", "halfonly.py:11"):
        assert words in sentence


@pytest.mark.nightly
def test_warnings_of_a_backend_decide_nothing(tmp_path: Path) -> None:
    chosen = ("--op=mm", "--op=exp", "--op=tanh", "--rule=downcast", "--rule=upcast")
    results = run(tmp_path, "noisy", "noisy", *chosen)
    assert len(results) > 50
    assert [(result.id, result.message) for result in results.values() if result.status != "pass"] == []


@pytest.mark.nightly
def test_a_backend_that_crashes_and_hangs_loses_those_cases(tmp_path: Path) -> None:
    chosen = ("--op=tanh", "--op=neg", "--rule=fallthrough", "-k=not database", "--timeout=30")
    results = run(tmp_path, "fragile", "fragile", *chosen)
    wrong = {key: result.status for key, result in results.items() if result.status != "pass"}
    low = "eager/fallthrough/{}-fp16-fp16-fragile"
    assert wrong == {low.format("tanh"): "crash", low.format("neg"): "timeout"}
    assert "SIGSEGV" in results[low.format("tanh")].message


@pytest.mark.nightly
def test_a_half_finished_backend_is_told_what_it_lacks(tmp_path: Path) -> None:
    ops = ("mm", "addmm", "tanh", "exp", "silu", "log", "bmm", "add.Tensor")
    rules = ("downcast", "upcast", "fallthrough")
    selection = (*(f"--op={op}" for op in ops), *(f"--rule={rule}" for rule in rules), "-k=not database")
    results = run(tmp_path, "halfdone", "halfdone", *selection)
    by_op = {op: [result for result in results.values() if result.op == op] for op in ops}
    statuses = {op: {result.status for result in by_op[op]} for op in ops}
    assert statuses["silu"] == statuses["log"] == {"unsupported"}
    assert all("Could not run 'aten::silu" in result.message for result in by_op["silu"])
    assert statuses["exp"] == {"broken"}
    assert all("has no attribute 'realise'" in result.message for result in by_op["exp"])
    for op in ("mm", "addmm", "tanh"):
        assert statuses[op] == {"broken", "pass"}
        broken = [result for result in by_op[op] if result.status == "broken"]
        assert all("halfdone: no lower precision in aten::" in result.message for result in broken)
    assert statuses["bmm"] == statuses["add.Tensor"] == {"pass"}


# ---- one whose storages cannot be read


@pytest.mark.parametrize(("told", "product"), [(True, 6.0), (False, 2.0)])
def test_a_kept_cast_follows_the_memory_it_is_told_of(told: bool, product: float, tmp_path: Path) -> None:
    """With `memory=` a cast is dropped when `weight.data = …` moves a weight, and without it stays, as documented."""
    code = f"""
import opaque, torch
if not {told}:
    opaque.BACKEND.register()
weight, x = torch.nn.Parameter(torch.ones(2, 2, device="opaque")), torch.ones(1, 2, device="opaque")
with torch.autocast("opaque", dtype=torch.bfloat16):
    torch.mm(x, weight), torch.mm(x, weight)
    assert len(opaque.BACKEND.autocast.cache) == 1
    weight.data = torch.full((2, 2), 3.0, device="opaque")
    print(torch.mm(x, weight).cpu()[0, 0].item())
"""
    done = start(tmp_path, "-c", code)
    assert done.stdout.strip() == str(product), done.stderr


# ---- one that has its autocast from one call

POLICIES = ("downcast", "upcast", "optdtype", "append", "promote", "banned", "fallthrough")
STATES = (
    *("nesting", "cache", "context", "state", "defaults"),
    *("errors", "decorator", "threads", "eligibility", "exceptions"),
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("rules", "least", "base"),
    [
        ((*POLICIES, *STATES), 5180, "cuda"),
        (("downcast", "upcast", "promote"), 850, "cpu"),  # the lists alone differ, in each of the dtypes
    ],
    ids=["lists of CUDA", "lists of the CPU"],
)
def test_one_call_gives_a_backend_its_autocast(tmp_path: Path, rules: tuple[str, ...], least: int, base: str) -> None:
    chosen = (*(f"--rule={rule}" for rule in rules), *(["--amp-dtype=bf16"] if base == "cpu" else []))
    results = run(tmp_path, "numpy_backend", "npy", *chosen, NPY_BASE=base)
    assert red(results) == []
    assert {result.rule for result in passed(results)} == set(rules)
    assert len(passed(results)) > least
