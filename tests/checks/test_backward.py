"""The check of gradients: which ops have cases, what the check makes of a device, and its reproduction."""

from collections.abc import Sequence

import pytest
import torch

from ampcheck.checks.backward import BackwardCheck, differentiable, gradient_accuracy, planned, run
from ampcheck.checks.cases import op_cases
from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.registry import known
from ampcheck.devices.virtual import DEVICES as VIRTUAL
from ampcheck.devices.virtual import graphs
from ampcheck.errors import Unsupported
from ampcheck.spec.case import Case
from ampcheck.spec.state import POLICIES, WITHOUT_GRADIENT
from tests.processor import NO_BF16_LSTM

CHECK = BackwardCheck()
RULES = tuple(policy for policy in POLICIES if policy != "banned")
UNFINISHED = {"linalg_cond.p_str"}
"""Ops whose gradient PyTorch has and refuses to compute: it changes an inverse in place that it saved."""


def cases(device: Device, rules: Sequence[str] = RULES, *, op: str | None = None) -> list[Case]:
    """The gradient cases of a device."""
    return [case for rule in rules for case in op_cases(device, rule, "autograd", only=op)]


def the(device: Device, name: str) -> Case:
    """The gradient case of an id."""
    return next(case for case in cases(device) if case.id == name)


@pytest.mark.parametrize("device", known().values(), ids=lambda device: device.name)
def test_every_op_with_a_policy_has_cases_or_a_reason(device: Device) -> None:
    promised = {overload for overload, policy in device.policies().items() if policy in RULES}
    assert promised - {case.op for case in cases(device)} == promised & set(WITHOUT_GRADIENT)


@pytest.mark.parametrize("device", known().values(), ids=lambda device: device.name)
def test_ids_differ_from_those_of_other_suites(device: Device) -> None:
    eager = {case.name for rule in RULES for case in op_cases(device, rule)}
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
    assert CHECK.run(the(Cpu(), "cdist-fp32-grad-bf16-cpu"), _Unsteady()) == []


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
        CHECK.run(the(device, "linalg_cond.p_str-fp32-grad-bf16-cpu"), device)


def test_a_device_without_autograd_says_so() -> None:
    device = known()["torchax"]
    with pytest.raises(Unsupported, match="torchax takes gradients with JAX"):
        CHECK.run(cases(device, op="mm")[0], device)


def test_a_gradient_that_is_missing_is_wrong_unless_it_is_zero() -> None:
    exact = {
        place: (torch.full((2,), value, dtype=torch.float64), torch.zeros(2)) for place, value in ((0, 0.0), (1, 2.0))
    }
    found = gradient_accuracy({}, exact, torch.float32, "it")
    assert found == ["the gradient of argument 1 of it is missing, with and without autocast; in float64 it is there"]
