"""The checks of gradients and of compiled programs: which ops have cases, what they make of a device, reproductions."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ampcheck.checks import compiled
from ampcheck.checks.backward import BackwardCheck, differentiable, gradient_accuracy, planned, run
from ampcheck.checks.cases import compiled_cases, compilers, op_cases
from ampcheck.checks.compiled import CompiledCheck
from ampcheck.compilers import kinds
from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.registry import known
from ampcheck.devices.virtual import DEVICES as VIRTUAL
from ampcheck.devices.virtual import graphs
from ampcheck.errors import Broken, Unsupported
from ampcheck.observe.recorder import Observation
from ampcheck.samples import catalogue
from ampcheck.spec.case import AROUND, COMPILERS, RULES, Case
from ampcheck.spec.casting import POLICIES, WITHOUT_GRADIENT
from tests.cli_support import PROGRAMS, python
from tests.processor import NO_BF16_LSTM

BACKWARD = BackwardCheck()
CASTING = tuple(policy for policy in POLICIES if policy != "banned")
UNFINISHED = {"linalg_cond.p_str"}
"""Ops whose gradient PyTorch has and refuses to compute: it changes an inverse in place that it saved."""


def cases(device: Device, rules: Sequence[str] = CASTING, *, op: str | None = None) -> list[Case]:
    """The gradient cases of a device."""
    return [case for rule in rules for case in op_cases(device, rule, "autograd", only=op)]


def the(device: Device, name: str) -> Case:
    """The gradient case of an id."""
    return next(case for case in cases(device) if case.id == name)


@pytest.mark.parametrize("device", known().values(), ids=lambda device: device.name)
def test_every_op_with_a_policy_has_cases_or_a_reason(device: Device) -> None:
    promised = {overload for overload, policy in device.policies().items() if policy in CASTING}
    assert promised - {case.op for case in cases(device)} == promised & set(WITHOUT_GRADIENT)


@pytest.mark.parametrize("device", known().values(), ids=lambda device: device.name)
def test_ids_differ_from_those_of_other_suites(device: Device) -> None:
    eager = {case.name for rule in CASTING for case in op_cases(device, rule)}
    names = [case.name for case in cases(device)]
    assert len(set(names)) == len(names)
    assert not eager & set(names)


@pytest.mark.filterwarnings("ignore")  # deprecated ops are called as well
@pytest.mark.parametrize("overload", WITHOUT_GRADIENT)
def test_what_has_no_case_has_no_gradient(overload: str) -> None:
    device = Cpu()
    policy = device.policies()[overload]
    case = next(case for case in op_cases(device, policy, only=overload) if case.inputs == "fp32")
    todo = planned(case, device)
    done = run(todo, device, differentiable(todo, device))
    assert not done.gradients()
    assert done.error is None or "derivative" in str(done.error)


@pytest.mark.filterwarnings("ignore")
def test_what_has_cases_has_a_gradient() -> None:
    device = Cpu()
    lacking = set()
    for case in cases(device):
        if case.sample or case.inputs != "fp32-grad" or case.amp != device.default_amp:
            continue
        todo = planned(case, device)
        if not run(todo, device, differentiable(todo, device)).gradients():
            lacking.add(case.op)
    assert lacking == UNFINISHED | ({"mkldnn_rnn_layer"} if NO_BF16_LSTM else set())


class _ByNodes(Cpu):
    """The CPU, whose backward pass is that of the virtual devices."""

    def backward(self, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        graphs.backward(outputs, gradients)


@pytest.mark.filterwarnings("ignore")
def test_running_the_nodes_gives_what_the_engine_gives() -> None:
    engine, nodes = Cpu(), _ByNodes()
    compared = 0
    for case in cases(engine):
        if case.sample or case.inputs == "fp32-grad":
            continue
        todo = planned(case, engine)
        places = differentiable(todo, engine)
        a, b = (run(todo, device, places, device.autocast(case.amp)) for device in (engine, nodes))
        assert type(a.error) is type(b.error), case.id
        assert a.gradients().keys() == b.gradients().keys(), case.id
        for place, gradient in a.gradients().items():
            torch.testing.assert_close(b.gradients()[place], gradient, equal_nan=True)
            compared += 1
    assert compared > 150


@pytest.mark.parametrize("device", VIRTUAL, ids=lambda device: device.name)
def test_fake_tensors_have_gradients_of_their_dtype(device: Device) -> None:
    case = next(case for case in cases(device, ["downcast"], op="mm") if "_" in case.inputs)
    with device.activate():
        todo = planned(case, device)
        done = run(todo, device, [0, 1], device.autocast(case.amp))
    assert [str(done.gradients()[place].dtype) for place in (0, 1)] == ["torch.float32", "torch.float16"]
    assert [kernel for kernel in done.kernels if kernel.startswith("mm ")] == ["mm fp16 fp16"] * 2


class _Unsteady(Cpu):
    """The CPU, with gradients that differ a little each time."""

    def backward(self, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        noise = 1 + 1e-5 * torch.rand((), generator=self.generator).item()
        super().backward(outputs, [gradient * noise for gradient in gradients])

    generator = torch.Generator().manual_seed(1)


class _Refusing(Cpu):
    """The CPU, without a backward pass."""

    def backward(self, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        raise RuntimeError("no such unit")


def test_bits_are_not_asked_of_what_is_never_the_same() -> None:
    assert BACKWARD.run(the(Cpu(), "cdist-fp32-grad-bf16-cpu"), _Unsteady()) == []


@pytest.mark.parametrize(
    ("device", "refusals", "words"),
    [
        (Cpu(), Cpu.refusals, r"PyTorch has no gradient of \S+linalg_cond.p_str, on the CPU in float64"),
        (_Refusing(), Cpu.refusals, "PyTorch has no gradient"),
        (_Refusing(), ("no such unit",), "RuntimeError: no such unit"),
    ],
)
def test_what_cannot_be_differentiated_is_unsupported(
    device: Cpu, refusals: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(device), "refusals", refusals)
    with pytest.raises(Unsupported, match=words):
        BACKWARD.run(the(device, "linalg_cond.p_str-fp32-grad-bf16-cpu"), device)


def test_a_device_without_autograd_says_so() -> None:
    device = known()["torchax"]
    with pytest.raises(Unsupported, match="torchax takes gradients with JAX"):
        BACKWARD.run(cases(device, op="mm")[0], device)


def test_a_gradient_that_is_missing_is_wrong_unless_it_is_zero() -> None:
    exact = {
        place: (torch.full((2,), value, dtype=torch.float64), torch.zeros(2)) for place, value in ((0, 0.0), (1, 2.0))
    }
    found = gradient_accuracy({}, exact, torch.float32, "it")
    assert found == ["the gradient of argument 1 of it is missing, with and without autocast; in float64 it is there"]


CPU = known()["cpu"]
CHECK = CompiledCheck()
MM = Case("jit", "downcast", "mm", "", "fp32_bf16", "bf16", "cpu", "cpu", "dynamo")


def test_each_name_has_a_compiler() -> None:
    assert list(kinds.COMPILERS) == list(COMPILERS)


def test_no_name_occurs_in_another_or_in_an_op() -> None:
    assert [(a, b) for a in COMPILERS for b in COMPILERS if a != b and a in b] == []
    assert [(name, op) for name in COMPILERS for op in catalogue() if name in op] == []


def test_the_id_and_back() -> None:
    assert (MM.id, MM.name) == ("mm-fp32_bf16-dynamo-bf16-cpu", f"jit/downcast/{MM.id}")
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
    assert (other.id, replace(other, compiler="").name) == ("two_uses-off-aot-bf16-cpu", "cache/two_uses-off-bf16-cpu")


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
    python("-W", "ignore", "-c", PROGRAMS["compiled-replay"])


@pytest.mark.parametrize(
    "compiler", ["dynamo", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("script", "aot", "strict"))]
)
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
