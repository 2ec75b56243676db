"""Compilers: their cases, ids and selectors, and the check that compares a compiled program with eager mode."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ampcheck.checks import compiled
from ampcheck.checks.cases import compiled_cases, compilers
from ampcheck.checks.compiled import CompiledCheck
from ampcheck.compilers import kinds
from ampcheck.devices.registry import known
from ampcheck.errors import Broken, Unsupported
from ampcheck.observe.recorder import Observation
from ampcheck.samples import catalogue
from ampcheck.spec.case import AROUND, COMPILERS, RULES, Case
from tests.cli_support import python

CPU = known()["cpu"]
CHECK = CompiledCheck()
MM = Case("jit", "downcast", "mm", "", "fp32_bf16", "bf16", "cpu", "cpu", "dynamo")


def test_each_name_has_a_compiler() -> None:
    assert list(kinds.COMPILERS) == list(COMPILERS)


def test_no_name_occurs_in_another_or_in_an_op() -> None:
    assert [(a, b) for a in COMPILERS for b in COMPILERS if a != b and a in b] == []
    assert [(name, op) for name in COMPILERS for op in catalogue() if name in op] == []


def test_the_id_and_back() -> None:
    assert MM.id == "mm-fp32_bf16-dynamo-bf16-cpu"
    assert MM.name == f"jit/downcast/{MM.id}"
    assert replace(MM, compiler="").name == "downcast/mm-fp32_bf16-bf16-cpu"
    fields = replace(MM, sample=AROUND).fields()
    assert fields == {
        "id": "mm+around-fp32_bf16-dynamo-bf16-cpu",
        "suite": "jit",
        "rule": "downcast",
        "op": "mm",
        "sample": "around",
        "inputs": "fp32_bf16",
        "amp": "bf16",
        "device": "cpu",
        "compiler": "dynamo",
    }


def test_the_compiler_of_a_scenario() -> None:
    scenario = Case("jit", "context", "body_alone", "", "", "bf16", "cpu", "cpu", "aot")
    assert scenario.name == "jit/context/body_alone-aot-bf16-cpu"
    assert "inputs" not in scenario.fields()
    other = replace(scenario, rule="cache", op="two_uses", inputs="off")
    assert other.id == "two_uses-off-aot-bf16-cpu"
    assert replace(other, compiler="").name == "cache/two_uses-off-bf16-cpu"


@pytest.mark.parametrize("name", ["cpu", "jax", "virtual:cuda", "virtual:mps"])
def test_every_run_is_a_part_of_a_nightly_one(name: str) -> None:
    device = known()[name]
    for rule in RULES:
        every = {case.name for case in compiled_cases(device, rule)}
        nightly = {case.name for case in compiled_cases(device, rule, nightly=True)}
        assert every <= nightly
    assert {case.compiler for case in compiled_cases(device, "downcast")} == set(compilers(device))


def test_every_op_with_a_policy_goes_through_the_quick_ones() -> None:
    for rule in ("downcast", "upcast", "promote"):
        wanted = {op for op, policy in CPU.policies().items() if policy == rule}
        for compiler in ("script", "traced", "dynamo", "export"):
            assert {case.op for case in compiled_cases(CPU, rule) if case.compiler == compiler} == wanted


@pytest.mark.parametrize("name", ["cpu", "jax", "virtual:cuda"])
def test_at_night_every_op_with_a_policy_goes_through_every_one(name: str) -> None:
    device = known()[name]
    left_out = {op.overload for op in catalogue().values() if device.type in op.samples[0].not_on}
    for rule in ("downcast", "upcast", "promote"):
        wanted = {op for op, policy in device.policies().items() if policy == rule} - left_out
        found = {(case.op, case.compiler) for case in compiled_cases(device, rule, nightly=True)}
        assert found == {(op, compiler) for op in wanted for compiler in compilers(device, nightly=True)}


def test_dynamo_meets_no_function_that_a_replay_puts_in() -> None:
    """A replay may import Dynamo first, which keeps what `torch.is_autocast_enabled` is at that moment."""
    program = """
import torch
from ampcheck.observe.recorder import replay
replay(lambda: __import__("torch._dynamo"), "cpu", "bf16", {})
compiled = torch.compile(lambda x: x + torch.is_autocast_enabled("cpu"), backend="eager", fullgraph=True)
assert compiled(torch.ones(1)) == 1
"""
    python("-W", "ignore", "-c", program)


@pytest.mark.parametrize("compiler", ["script", "dynamo", "aot", "strict"])
def test_the_program_runs(compiler: str, tmp_path: Path) -> None:
    text = CHECK.program(replace(MM, compiler=compiler), CPU)
    assert "ampcheck" not in text
    assert ran(text, tmp_path) == [
        "ok   the first call",
        "ok   the second call",
        "ok   the call beside explicit casts",
        *["ok   what the kernel received"] * (compiler != "aot"),
    ]
    wrong = text.replace("got = run(compiled.call,", "got = run(lambda a, b: compiled.call(a, b).half(),")
    assert ran(wrong, tmp_path)[1] == f"FAIL output 0 of {compiler}: aten::mm is fp16; expected bf16"
    if compiler == "script":
        refused = text.replace("compiled = ", "compiled = [][0]  # ", 1)
        assert ran(refused, tmp_path) == [
            "FAIL script: aten::mm was not compiled: IndexError: list index out of range; eager mode runs it"
        ]


def ran(text: str, folder: Path) -> list[str]:
    """What a program prints; TorchScript and Dynamo read its source."""
    path = folder / "program.py"
    path.write_text(text, encoding="utf-8")
    return python("-W", "ignore", path).splitlines()


def raising(text: str) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> Any:
        raise RuntimeError(text)

    return call


def running(call: Callable[..., Any]) -> Callable[..., kinds.Compiled]:
    return lambda *_, **__: kinds.Compiled(call)


BANNED, LACKED = "is unsafe to autocast\nuse another op", "could not create a primitive descriptor for x"
NOT_COMPILED = "dynamo: aten::mm was not compiled: RuntimeError: "
OTHER_WORDS = running(raising("failed in the interpreter"))
FAILING: dict[str, tuple[str, str, Callable[..., kinds.Compiled] | None, str | type[Exception]]] = {
    "not compiled": ("", "", raising("no graph\nof this"), NOT_COMPILED + "no graph … of this; eager mode runs it"),
    "refused as in eager mode": (BANNED, "", raising("while tracing\nis unsafe to autocast"), ""),
    "refused otherwise": (BANNED, "", raising("while tracing\nthe compiler has a defect"), NOT_COMPILED),
    "refused by the device": ("no such unit", "", OTHER_WORDS, Unsupported),
    "in other words": ("a bug", "", OTHER_WORDS, NOT_COMPILED + "failed in the interpreter"),
    "in regions alone": ("a bug", "", None, ""),
    "without autocast too": ("a bug", "a bug", None, Broken),
    "lacked without autocast too": (LACKED, LACKED, None, Unsupported),
}
"""What eager mode raises in a region and without one, the compiler, and what is said: an exception, or a beginning."""


@pytest.mark.parametrize("name", FAILING)
def test_a_program_may_raise_what_eager_mode_raises(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    eager, without, make, outcome = FAILING[name]
    monkeypatch.setattr(type(CPU), "refusals", ("no such unit", *CPU.refusals))
    if eager:
        error = RuntimeError(without) if without else None
        monkeypatch.setattr(compiled.source, "define", lambda _: raising(eager))
        monkeypatch.setattr(compiled, "run_reference", lambda *_: Observation(error=error))
    if make:
        monkeypatch.setitem(kinds.COMPILERS, "dynamo", kinds.Compiler(make))
    if isinstance(outcome, str):
        found = CHECK.run(MM, CPU)
        assert [text[: len(outcome)] for text in found] == [outcome] * bool(outcome)
    else:
        with pytest.raises(outcome, match=eager):
            CHECK.run(MM, CPU)
