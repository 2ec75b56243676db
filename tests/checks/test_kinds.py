"""Each kind of case: it describes a case, writes its program, names what is wrong, and passes what is right."""

import json
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch

from ampcheck import samples
from ampcheck.checks import forward
from ampcheck.checks.cases import CallPlan, database_cases, op_cases, plan
from ampcheck.checks.drift import DriftCheck
from ampcheck.checks.forward import ForwardCheck, judge_raise
from ampcheck.checks.kinds import check_of
from ampcheck.checks.op_database import SAMPLES, OpDatabaseCheck
from ampcheck.checks.sweep import SweepCheck
from ampcheck.devices import base
from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.registry import known
from ampcheck.errors import Broken, CheckFailure, Unsupported, UsageError
from ampcheck.observe.recorder import tensors
from ampcheck.samples import op_database
from ampcheck.spec.case import CELLS, MAX_LENGTH, RULES, Case
from ampcheck.spec.casting import FLOATING
from ampcheck.spec.policies import minor, versions
from scripts import op_database as tool
from tests.cli_support import PROGRAMS, python
from tests.faults import BY_NAME
from tests.faults.kernels import in_low, kernel, result, to
from tests.faults.suites import Runners
from tests.reproduce import programs as runner

CPU, CUDA = ("bf16", "cpu", "cpu"), ("fp16", "virtual:cuda", "vcu")
CASES = {
    Case("eager", "downcast", "mm", "", "fp32", *CPU): "ForwardCheck",
    Case("eager", "downcast", "mm", "method", "fp32", *CUDA): "ForwardCheck",
    Case("eager", "optdtype", "sum", "", "fp16", *CUDA): "ForwardCheck",
    Case("eager", "append", "norm.Scalar", "", "fp16", *CUDA): "ForwardCheck",
    Case("eager", "fallthrough", "tensordot", "", "fp32", *CPU): "ForwardCheck",
    Case("eager", "fallthrough", "tanh", "", "bf16", *CPU): "ForwardCheck",
    Case("autograd", "downcast", "mm", "", "fp32-grad", *CPU): "BackwardCheck",
    Case("autograd", "promote", "stack", "", "fp32_bf16at2-grad", *CPU): "BackwardCheck",
    Case("autograd", "upcast", "nll_loss", "", "fp32-grad", *CPU): "BackwardCheck",
    Case("autograd", "append", "norm.Scalar", "", "fp32-grad", *CUDA): "BackwardCheck",
    Case("autograd", "downcast", "mm", "", "fp32_fp16-grad", "fp16", "virtual:mps", "vmp"): "BackwardCheck",
    Case("jit", "downcast", "mm", "", "fp32", *CPU, "export"): "CompiledCheck",
    Case("eager", "downcast", "mm", CELLS, "grad", *CPU): "SweepCheck",
    Case("eager", "downcast", "mm", CELLS, "inference", *CUDA): "SweepCheck",
    Case("eager", "banned", "binary_cross_entropy", CELLS, "plain", *CUDA): "SweepCheck",
    Case("jit", "downcast", "mm", CELLS, "grad", *CPU, "traced"): "SweepCheck",
    Case("jit", "downcast", "mm", CELLS, "grad", *CPU, "export"): "SweepCheck",
    Case("eager", "drift", "mm", "", "all", *CPU): "DriftCheck",
    Case("eager", "fallthrough", "add", "database", "fp32", *CPU): "OpDatabaseCheck",
    Case("eager", "fallthrough", "add", "database", "fp16", *CUDA): "OpDatabaseCheck",
    Case("eager", "context", "exit_restores", "", "", *CPU): "",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_a_case_is_of_one_kind(case: Case) -> None:
    kind = check_of(case)
    assert (type(kind).__name__ if kind else "") == CASES[case]
    if kind:
        told = kind.describe(case)
        assert case.op in told
        assert told.endswith(".")


@pytest.mark.nightly
def test_what_is_right_runs_as_a_program(tmp_path: Path) -> None:
    """All of them in one process where ampcheck cannot be imported; those of a case that ended its process, too.

    Nothing of the latter is run to write its program.
    """
    made = {}
    for case in CASES:
        if (kind := check_of(case)) is not None:
            device = known()[case.device]
            made[case.key] = {"program": kind.program(case, device)}
            with patch.object(torch.autocast, "__enter__", side_effect=AssertionError("it was run")):
                made[f"{case.key}, not run"] = {"program": kind.program(case, device, ran=False)}
    given, got = tmp_path / "programs.json", tmp_path / "results.json"
    given.write_text(json.dumps(made), encoding="utf-8")
    python("-I", runner.__file__, given, got, folder=tmp_path)
    for name, ran in json.loads(got.read_text(encoding="utf-8")).items():
        refused = "banned" in name and name.endswith("not run")
        assert bool(ran["raised"]) == refused, f"{name}: {ran['raised']}"
        lines = ran["printed"].splitlines()
        assert refused or lines, name
        assert name.endswith("not run") or all(line.startswith("ok   ") for line in lines), f"{name}: {lines}"


SAID = tomllib.loads(Path(__file__).with_name("messages.toml").read_text(encoding="utf-8"))
"""By device and mutant: a case, and a line that its message has."""


@pytest.fixture(scope="module")
def runners() -> Iterator[Runners]:
    made = Runners()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("device", "mutant", "case", "sentence"),
    [
        pytest.param(device, mutant, said["case"], said["says"], id=mutant)
        for device, table in SAID.items()
        for mutant, said in table.items()
    ],
)
def test_message(device: str, mutant: str, case: str, sentence: str, runners: Runners) -> None:
    said = runners.run(BY_NAME[mutant], device, [case])[case]["message"]
    assert sentence in said.splitlines()


Kernel = Callable[[torch.Tensor, torch.Tensor], Any]
mm = torch.ops.aten.mm.default
CASE = Case("eager", "downcast", "mm", "", "bf16", "bf16", "cpu", "cpu")


def grads() -> bool:
    return torch.is_grad_enabled() or torch.is_inference_mode_enabled()


def in_region() -> bool:
    return torch.is_autocast_enabled("cpu")


def raising(error: Exception) -> Kernel:
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise error

    return kernel


def buffered(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the same memory each time."""
    out = buffers.setdefault((x.dtype, x.shape, y.shape), torch.empty(x.shape[0], y.shape[1], dtype=x.dtype))
    return out.copy_(mm(x, y)) if x.dtype == y.dtype else mm(x, y)


def writing(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return wrong values twice, and change an argument."""
    out = mm(x, y) * 2
    x.zero_()
    return out, out


buffers: dict[object, torch.Tensor] = {}
calls = count()
KERNELS: dict[str, tuple[Kernel, str, str]] = {  # further ones are injected by tests/faults/backends.py
    "has no kernel": (
        raising(NotImplementedError("Could not run 'aten::_mps_convolution' with arguments from the 'CPU' backend.")),
        "unsupported",
        "Could not run",
    ),
    "refuses as declared": (
        raising(RuntimeError("\"addmm_impl_cpu_\" not implemented for 'BFloat16'")),
        "unsupported",
        "not implemented for",
    ),
    "uncast without gradients": (
        lambda x, y: mm(x, y).float() if in_region() and not grads() else mm(x, y),
        "fail",
        "on positive inputs, in torch.no_grad(): output 0 of aten::mm is fp32; expected bf16",
    ),
    "uncast in inference mode": (
        lambda x, y: mm(x, y).float() if in_region() and torch.is_inference_mode_enabled() else mm(x, y),
        "fail",
        "on large inputs, in torch.inference_mode(): output 0 of aten::mm is fp32; expected bf16",
    ),
    "of other strides outside": (lambda x, y: mm(x, y) if in_region() else mm(x, y).t().contiguous().t(), "pass", ""),
    "two outputs": (lambda x, y: (mm(x, y), mm(x, y)), "broken", "returned 2 tensors; expected 1"),
    "a write that shows later": (buffered, "broken", "changed when the op was called again"),
    "sums in another order each time": (lambda x, y: mm(x, y) * (1 + 2**-8 * (next(calls) % 2)), "pass", ""),
    "other values each time": (lambda x, y: mm(x, y) * (1 + next(calls)), "broken", "does not repeat"),
    "a write to an argument": (writing, "broken", "argument 0"),
    "another dtype": (lambda x, y: mm(x, y).double() * 2, "broken", "is fp64; expected bf16"),
}
ALONE = ("a write to an argument", "another dtype")
"""Mistakes that are said alone, though more is wrong."""


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what puts a kernel in the place of mm, where the device under test runs it; what is observed is right."""

    def replace_by(kernel: Kernel, case: Case = CASE) -> None:
        watched = forward.watch(case, Cpu(), plan(case, Cpu()))
        reference(case)
        monkeypatch.setattr(forward, "watch", lambda *_, **__: watched)
        monkeypatch.setattr(CallPlan, "function", property(lambda todo: kernel))

    return replace_by


def reference(case: Case) -> None:
    """Compute what the kernel is compared with, before it is replaced on the CPU, too."""
    todo = plan(case, Cpu())
    for form in ("", *forward.FORMS):
        forward.reference(forward.in_layout(todo, form) or todo if form else todo)


@pytest.mark.parametrize("name", KERNELS)
def test_a_wrong_kernel(name: str, replaced: Callable[..., None]) -> None:
    kernel, status, says = KERNELS[name]
    assert outcome(CASE) == ("pass", "")
    replaced(kernel)
    got, said = outcome(CASE)
    assert (got, says in said) == (status, True), said
    assert name not in ALONE or said.count("\n") == 0, said


def outcome(case: Case, device: Cpu | None = None) -> tuple[str, str]:
    try:
        differences = ForwardCheck().run(case, device or Cpu())
    except Broken as error:
        return "broken", str(error)
    except Unsupported as error:
        return "unsupported", str(error)
    except CheckFailure as error:
        return "fail", str(error)
    return ("fail" if differences else "pass"), "\n".join(differences)


class Elsewhere(Cpu):
    """A device that is not the CPU and has no op database."""

    type = "elsewhere"
    database = False
    refusals = ("not on elsewhere",)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()


class Slow(Cpu):
    """A CPU without an op database."""

    database = False


@pytest.mark.parametrize(
    ("device", "changes", "status"),
    [
        (Cpu(), {}, "broken"),
        (Cpu(), {"inputs": "fp32"}, "broken"),
        (Cpu(), {"inputs": "fp64", "rule": "fallthrough"}, "pass"),
        (Cpu(), {"sample": "torch"}, "pass"),
        (Slow(), {}, "broken"),
        (Slow(), {"inputs": "fp32"}, "pass"),
    ],
)
def test_other_values(device: Cpu, changes: dict[str, str], status: str, replaced: Callable[..., None]) -> None:
    case = replace(CASE, **changes)  # type: ignore[arg-type]  # all fields are strings
    replaced(lambda x, y: mm(x, y).clamp(-10, 10), case)
    assert outcome(case, device)[0] == status


MIXED = replace(CASE, rule="fallthrough", inputs="bf16_fp32")


@pytest.mark.parametrize(
    ("case", "device", "raised", "on_cpu", "status"),
    [
        (CASE, Cpu(), "boom", None, "broken"),
        (CASE, Cpu(), "boom", "boom", "broken"),  # the device is the CPU
        (CASE, Elsewhere(), "boom", None, "broken"),
        (CASE, Elsewhere(), "boom", "boom", "unsupported"),
        (CASE, Elsewhere(), "boom", "another", "broken"),
        (CASE, Elsewhere(), "boom", ValueError("boom"), "broken"),
        (CASE, Elsewhere(), "not on elsewhere", None, "unsupported"),
        (CASE, Elsewhere(), "expected scalar type Half", "another", "broken"),
        (MIXED, Elsewhere(), "expected scalar type Half", None, "pass"),
        (MIXED, Elsewhere(), "boom", "another", "pass"),
        (MIXED, Elsewhere(), "boom", None, "broken"),
        (replace(MIXED, inputs="int64"), Elsewhere(), "boom", "another", "pass"),
    ],
)
def test_what_is_raised_without_autocast_too(
    case: Case, device: Cpu, raised: str, on_cpu: Any, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = RuntimeError(on_cpu) if isinstance(on_cpu, str) else on_cpu
    monkeypatch.setattr(forward, "raised_by_cpu", lambda todo: cpu)
    got = "pass"
    try:
        judge_raise(RuntimeError(raised), device, plan(case, Cpu()))
    except (Broken, Unsupported) as error:
        got = type(error).__name__.lower()
    assert got == status


def test_inputs_that_the_device_refuses_are_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "tensor", Mock(side_effect=RuntimeError("copy not implemented for 'BFloat16'")))
    with pytest.raises(Unsupported, match="not implemented for"):
        ForwardCheck().run(CASE, Cpu())


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cpu]:
    """The CPU of a torch without a table, whose dispatcher has policies for three overloads the closest table lacks."""
    monkeypatch.setattr(base, "covered", lambda version: False)
    monkeypatch.setattr(base, "unlisted", lambda key: ["mm", "cat", "glu_backward"])
    base.promised.cache_clear()
    yield Cpu()
    base.promised.cache_clear()


def case_of(device: Cpu, op: str) -> Case:
    return next(case for case in op_cases(device, "drift") if case.op == op)


def test_new_overloads_have_cases_of_their_own(newer: Cpu) -> None:
    assert [case.id for case in op_cases(newer, "drift")] == [
        f"{op}-all-bf16-cpu" for op in ("cat", "glu_backward", "mm")
    ]
    assert not [case for rule in ("downcast", "fallthrough") for case in op_cases(newer, rule) if case.op == "mm"]
    assert [case for case in op_cases(newer, "downcast") if case.op == "bmm"]


def test_on_a_covered_torch_there_are_none() -> None:
    assert list(op_cases(Cpu(), "drift")) == []


def test_an_overload_that_follows_a_known_policy_passes(newer: Cpu) -> None:
    assert DriftCheck().run(case_of(newer, "mm"), newer) == []


def test_one_without_samples_is_unsupported(newer: Cpu) -> None:
    with pytest.raises(Unsupported, match=r"aten::glu_backward is registered .* has no samples yet"):
        DriftCheck().run(case_of(newer, "glu_backward"), newer)


def test_one_that_follows_no_policy_is_named(newer: Cpu) -> None:
    with kernel("mm", to(lambda call: torch.float64))("cpu"):
        [difference] = DriftCheck().run(case_of(newer, "mm"), newer)
    assert difference.startswith("aten::mm is registered under AutocastCPU, is in no table, and follows none of")


def test_a_dropped_overload_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(iter(op_cases(Cpu(), "upcast")))
    monkeypatch.setattr(forward, "exists", lambda name: name != case.op)
    with pytest.raises(Unsupported, match=f"has no aten::{case.op}"):
        ForwardCheck().run(case, Cpu())


def test_what_a_composite_op_hides_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    """bilinear calls bmm inside a kernel; where no recorder fits, its result is neither right nor wrong."""
    case = next(case for case in op_cases(Cpu(), "fallthrough") if case.op == "bilinear" and case.inputs == "fp32")
    assert ForwardCheck().run(case, Cpu()) == []
    monkeypatch.setattr(forward, "replaceable", lambda key: False)
    with pytest.raises(Unsupported, match=r"aten::bilinear gives something else in a region"):
        ForwardCheck().run(case, Cpu())


Fault = Callable[[torch.Tensor], torch.Tensor]

FAULTS: dict[str, tuple[Fault, str]] = {
    "value": (lambda x: x * 1.25, "differs from the same op on explicitly cast inputs"),
    "shape": (lambda x: x.unsqueeze(0), "has shape (1, "),
    "strides": (lambda x: x.mT.clone(memory_format=torch.contiguous_format).mT, "has strides"),
    "cast": (lambda x: x.to(torch.float32), "is fp32; expected"),
}
"""Each changes what a kernel of autocast returns; beside it, what a difference says."""


def wrong_mm(device: str, fault: Fault) -> AbstractContextManager[object]:
    """Put a kernel of autocast for mm in place that casts as it should and returns something else."""
    return kernel("mm", result(in_low, lambda call, x: fault(x)))(device)


def cell(device: str, token: str, amp: str, compiler: str = "") -> Case:
    return Case("jit" if compiler else "eager", "downcast", "mm", CELLS, "grad", amp, device, token, compiler)


@pytest.mark.parametrize(
    ("device", "name"),
    [*(("cpu", name) for name in FAULTS), *(("virtual:mps", name) for name in FAULTS if name != "value")],
)
def test_a_wrong_output_is_noticed(device: str, name: str) -> None:
    fault, told = FAULTS[name]
    case = cell(device, known()[device].token, known()[device].default_amp)
    case = replace(case, inputs="grad" if known()[device].has_values else "no_grad")
    with wrong_mm(device, fault):
        found = SweepCheck().run(case, known()[device])
    assert any(told in text for text in found)


@pytest.mark.parametrize("compiler", ["traced", "aot", "export"])
@pytest.mark.parametrize("name", ["value", "shape", "strides"])
def test_a_fault_in_eager_mode_and_in_the_program_is_noticed(name: str, compiler: str) -> None:
    with wrong_mm("cpu", FAULTS[name][0]):
        found = SweepCheck().run(cell("cpu", "cpu", "bf16", compiler), known()["cpu"])
    assert any("explicitly cast inputs, without a region" in text for text in found)


def test_right_kernels_pass() -> None:
    with wrong_mm("cpu", lambda x: x):
        assert SweepCheck().run(cell("cpu", "cpu", "bf16"), known()["cpu"]) == []


def test_strides_that_a_compiler_gives_without_a_region_are_right() -> None:
    # TorchScript makes mm and add of addmm, whose result lies in memory as the bias does.
    case = Case("jit", "downcast", "addmm", CELLS, "plain", "bf16", "cpu", "cpu", "traced")
    assert SweepCheck().run(case, known()["cpu"]) == []


def test_the_parts_of_an_op_receive_what_they_do_without_a_region() -> None:
    # TorchScript casts float32 alone, so the mm that it makes of addmm gets two lower precisions.
    case = Case("jit", "downcast", "addmm", CELLS, "plain", "fp16", "virtual:cuda", "vcu", "script")
    found = [text for text in SweepCheck().run(case, known()["virtual:cuda"]) if text.startswith("the parts of")]
    assert "('mm', ['fp16', 'bf16'])" in found[0]
    assert all("[low+other, " in text for text in found)


ON_CPU = known()["cpu"]
CHECK = OpDatabaseCheck()
DEVICES = [device for device in known().values() if device.key.startswith("Autocast")]


def case(op: str) -> Case:
    """The database's case of an op."""
    (found,) = (c for c in database_cases(ON_CPU) if (c.op, c.inputs) == (op, "fp32"))
    return found


# ---- names


def test_the_file_is_current() -> None:
    if minor(torch.__version__) not in versions():
        assert not op_database.rows()
        return
    assert tool.current() == op_database.rows()


def test_a_difference_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fewer = {op: row for op, row in op_database.rows().items() if op != "relu" and op != "nn.functional.relu"}
    monkeypatch.setattr(op_database, "rows", lambda: fewer)
    assert tool.main([]) == 1
    assert capsys.readouterr().out.startswith("nn.functional.relu: the file has None; torch ")


def test_writing_changes_the_lines_of_one_version(tmp_path: Path) -> None:
    path = tmp_path / "op_database.csv"
    tool.write(path, "2.13", op_database.rows("2.13"))
    assert path.read_text() == op_database.FILE.read_text()
    relu = op_database.DatabaseRow("nn.functional.relu", "fp32", "relu")
    tool.write(path, "2.13", op_database.rows("2.13") | {"nn.functional.relu": relu})
    lines = [line.split(",") for line in path.read_text().splitlines() if line.startswith("nn.functional.relu,")]
    assert sorted(line[-2:] for line in lines) == [["2.11", "2.12"], ["2.13", "2.13"], ["2.14", ""]]
    assert ["nn.functional.relu", "fp32", "relu", "2.13", "2.13"] in lines
    with pytest.raises(UsageError, match=r"^torch 9\.9 is in no policy table yet; run python -m scripts.release"):
        tool.write(path, "9.9", {})


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.token)
def test_ids_are_safe_and_hold_no_foreign_token(device: Device) -> None:
    tokens = {*RULES, *FLOATING, *(d.token for d in DEVICES), "jax", "tpu", "eager", "jit", "autograd", "scaler"}
    ids = [c.id for c in database_cases(device)]
    assert len(ids) > 1000
    assert len(set(ids)) == len(ids)
    for name in ids:
        assert len(name) <= MAX_LENGTH
        op, _, rest = name.partition("+")
        assert rest.startswith("database-")
        assert [token for token in tokens if token in op.lower()] == []


def test_no_op_of_the_catalogue_has_a_sample_of_that_name() -> None:
    assert [
        op.overload for op in samples.catalogue().values() for s in op.samples if s.name == op_database.SAMPLE
    ] == []


def test_ops_with_a_policy_are_left_out_where_they_have_one() -> None:
    on_cpu, on_mps = ({c.op for c in database_cases(known()[name])} for name in ("cpu", "virtual:mps"))
    assert not {"mm", "nn.functional.conv2d"} & on_cpu
    assert "exp" in on_cpu
    assert "exp" not in on_mps
    assert {"relu" if "relu" in on_cpu else "nn.functional.relu", "add", "__getitem__"} <= on_cpu


def test_collecting_imports_no_database() -> None:
    python("-W", "error::UserWarning", "-c", PROGRAMS["kinds-collecting"])


# ---- samples


@pytest.mark.parametrize("op", ["uniform", "nn.functional.nll_loss", "as_strided.partial_views", "__getitem__", "svd"])
def test_samples_are_the_same_at_each_call(op: str) -> None:
    info = op_database.database()[op]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = op_database.samples(info, "fp32", "cpu", SAMPLES)
    second = op_database.samples(info, "fp32", "cpu", SAMPLES)
    assert torch.equal(state, torch.get_rng_state())
    assert len(first) == len(second) > 0
    for a, b in zip(first, second, strict=True):
        assert repr(a) == repr(b)
        everything = [list(tensors((s.input, s.args, s.kwargs))) for s in (a, b)]
        torch.testing.assert_close(*everything, rtol=0, atol=0)


# ---- the check


def test_right_behaviour_passes_without_values() -> None:
    """Of an op that casts by itself before an op with a policy."""
    device = known()["virtual:xpu"]
    (chosen,) = (c for c in database_cases(device) if (c.op, c.inputs) == ("float_power", "fp16"))
    assert CHECK.run(chosen, device) == []


def _planted(op: str, wrong: object) -> object:
    """The op database with another function for one op."""
    return patch.object(op_database.database()[op], "op", wrong)


def _only_under_autocast(change: Callable[[object], object], otherwise: Callable[..., object]) -> object:
    def call(*args: object, **kwargs: object) -> object:
        if torch.is_autocast_enabled("cpu"):
            return change(otherwise(*args, **kwargs))
        return otherwise(*args, **kwargs)

    return call


def _refuse(out: object) -> object:
    raise RuntimeError("not under autocast")


@pytest.mark.parametrize(
    ("op", "change", "says"),
    [
        ("add", lambda out: out.bfloat16(), "add returned bf16; expected fp32 as without autocast (rule fallthrough"),
        ("add", lambda out: out * 1.5, "output 0 of add differs in value; expected the same bits as without autocast"),
        ("add", lambda out: out.unsqueeze(0), "output 0 of add has shape (1,); expected () as without autocast"),
        ("allclose", lambda out: not out, "allclose returned [False]; expected [True] as without autocast"),
        ("add", _refuse, "add under autocast raised RuntimeError: not under autocast; without autocast"),
        ("empty_like", lambda out: out.half(), "empty_like returned fp16; expected fp32 as without autocast"),
    ],
    ids=["dtype", "value", "shape", "result", "error", "uninitialised"],
)
def test_a_difference_is_found(op: str, change: object, says: str) -> None:
    chosen = case(op)
    with _planted(op, _only_under_autocast(change, op_database.database()[op].op)):
        differences = CHECK.run(chosen, ON_CPU)
    assert len(differences) == 1
    assert says in differences[0]
    assert differences[0].startswith("sample 0: ")
    assert CHECK.run(chosen, ON_CPU) == []


def test_a_part_that_gets_a_wrong_dtype_is_found() -> None:
    """A composite op that hides from autocast what its part receives."""

    def wrong(*args: object, **kwargs: object) -> object:
        a = torch.ones(2, 2)
        with torch.autocast("cpu", enabled=False):
            return torch.mm(a, a)

    with _planted("add", wrong):
        differences = CHECK.run(case("add"), ON_CPU)
    assert differences == [
        f"sample 0: argument {place} of aten::mm was given as fp32 and reached the kernel as fp32; expected bf16 "
        f"(rule downcast: {RULES['downcast'].sentence})"
        for place in (0, 1)
    ]


def test_what_is_raised_with_and_without_autocast_is_broken_unless_the_device_declares_it() -> None:
    said = "RuntimeError: not under autocast"
    with _planted("add", lambda *args, **kwargs: _refuse(None)):
        with pytest.raises(Broken, match=rf"^add raised {said}; it raises that without autocast, too$"):
            CHECK.run(case("add"), ON_CPU)
        with patch.object(type(ON_CPU), "refusals", ("not under",)), pytest.raises(Unsupported, match=f"^{said}$"):
            CHECK.run(case("add"), ON_CPU)


def test_an_op_without_samples_is_no_pass() -> None:
    with patch.object(op_database.database()["add"], "sample_inputs_func", lambda *args: iter(())):
        assert CHECK.run(case("add"), ON_CPU) == ["the op database has no fp32 sample of add for cpu"]


def test_an_op_this_torch_lacks_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"^the op database of torch .* has no abacus$"):
        CHECK.run(Case("eager", "fallthrough", "abacus", "database", "fp32", "bf16", "cpu", "cpu"), ON_CPU)
