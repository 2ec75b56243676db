"""Backends as others write them are judged rightly with the faults they have; tests/faults injects more into others."""

from pathlib import Path

import pytest

from ampcheck.runner.record import RED
from tests.backends.support import passed, red, run, start
from tests.cli_support import PROGRAMS

# ---- one that has autocast of its own


@pytest.mark.nightly
def test_the_backend_is_as_it_promises(tmp_path: Path) -> None:
    rules = ("downcast", "upcast", "optdtype", "append", "promote", "banned", "context", "state", "defaults", "errors")
    results = run(tmp_path, "slowpoke", "slowpoke", *(f"--rule={rule}" for rule in rules))
    assert (red(results), {result.rule for result in passed(results)}) == ([], set(rules))
    assert len(passed(results)) > 2900


@pytest.mark.nightly
def test_a_backend_without_a_weight_cache_is_told(tmp_path: Path) -> None:
    found = red(run(tmp_path, "slowpoke", "slowpoke", "--rule=cache"))
    assert any("casts of a leaf used by three products: got 3; expected 1" in result.message for result in found)


# ---- one whose storages cannot be read


@pytest.mark.parametrize(("told", "product"), [(True, 6.0), pytest.param(False, 2.0, marks=pytest.mark.nightly)])
def test_a_kept_cast_follows_the_memory_it_is_told_of(told: bool, product: float, tmp_path: Path) -> None:
    """With `memory=` a cast is dropped when `weight.data = …` moves a weight, and without it stays, as documented."""
    done = start(tmp_path, "-c", PROGRAMS["backends-kept_cast"].format(told=told))
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
    assert (red(results), {result.rule for result in passed(results)}) == ([], set(rules))
    assert len(passed(results)) > least


# ---- one with few policies and one lower precision

ASKED = " or ".join(("layer_in_two", "not_for_casts_to_float32", "dtype_order", "setter[region-brain"))


@pytest.mark.parametrize(
    ("lacks", "wrong"), [("", set()), pytest.param("mm", {"dtype_order"}, marks=pytest.mark.nightly)]
)
def test_a_scenario_needs_what_the_device_promises_alone(lacks: str, wrong: set[str], tmp_path: Path) -> None:
    results = run(tmp_path, "small", "small", "-k", ASKED, LACKS=lacks).values()
    by_op = {result.op: [one for one in results if one.op == result.op] for result in results}
    assert {result.op for result in results if result.status in RED} == wrong
    assert {result.status for result in by_op["setter"]} == {"pass"}
    for op, policy in {"not_for_casts_to_float32": "mse_loss", "layer_in_two_dtypes": "linear"}.items():
        told = f"small does not promise policies that the case needs: {policy}"
        assert {result.message for result in by_op[op]} == {told}
    two = "small declares no regions of bf16: its amp_dtypes are ('fp16',)"
    assert any(result.message == two for result in by_op["dtype_order"])


@pytest.mark.nightly
def test_a_formula_of_ops_that_are_not_promised_is_no_promise(tmp_path: Path) -> None:
    """Without a policy for linear, attention in a region calls it with two dtypes, as its formula does."""
    (tmp_path / "lacking.py").write_text(PROGRAMS["backends-lacking"], encoding="utf-8")
    (result,) = run(tmp_path, "lacking", "partial", "--rule=variants", "-k", "anywhere and attention").values()
    assert result.status == "unsupported"
    assert result.message == "partial does not promise policies that the case needs: linear"


# ---- one that lacks kernels that some scenarios and random programs call


@pytest.mark.nightly
def test_what_calls_a_missing_kernel_is_unsupported(tmp_path: Path) -> None:
    lacks = {"LACKS": "_native_multi_head_attention atan2"}
    chosen = ("--rule=variants", "--rule=programs", "-k", "anywhere or mixed")
    results = run(tmp_path, "opaque", "opaque", *chosen, **lacks)
    found = {key.removesuffix("-fp16-opaque"): result.status for key, result in results.items()}
    assert found.pop("eager/variants/anywhere-attention") == "unsupported"
    assert "eager/programs/random-mixed" in found
    assert set(found.values()) == {"pass"}


# ---- one that computes an op and has no kernel for its gradient


@pytest.mark.parametrize(
    ("op", "rule", "kernels", "status"),
    [
        ("linear", "downcast", "HAS=linear", "broken"),  # PyTorch then asks for linear_backward
        pytest.param("softmax.int", "optdtype", "LACKS=_softmax_backward_data", "broken", marks=pytest.mark.nightly),
        pytest.param("softmax.int", "optdtype", "LACKS=_softmax", "unsupported", marks=pytest.mark.nightly),
    ],
)
def test_a_missing_gradient_is_red(op: str, rule: str, kernels: str, status: str, tmp_path: Path) -> None:
    code = PROGRAMS["backends-missing_gradient"].format(op=op, rule=rule)
    name, _, ops = kernels.partition("=")
    done = start(tmp_path, "-c", code, **{name: ops})
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} == {status}, done.stdout + done.stderr
    assert all(("its gradient has no kernel: write one" in line) == (status == "broken") for line in lines)
