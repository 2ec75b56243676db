"""The preflight: a right device passes each step, each planted fault is named; GPUs without one; virtual devices."""

import ctypes
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.checks.cases import op_cases
from ampcheck.checks.forward import judge_raise, plan
from ampcheck.devices import base, preflight, virtual
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.cuda import Cuda
from ampcheck.devices.preflight import PreflightFinding, before_run, examine
from ampcheck.devices.registry import known
from ampcheck.devices.virtual import Virtual, graphs
from ampcheck.errors import Unsupported, UsageError
from ampcheck.observe.torch_private import DeviceType, get_cudnn_enabled
from ampcheck.runner.deviations import KnownDeviations, load
from ampcheck.runner.record import read
from ampcheck.runner.run import fitting
from ampcheck.spec.policies import closest, table
from tests.cli_support import MODULE, PROGRAMS, ROOT, refused, run, run_pytest

aten = torch.ops.aten

# ---- a device on the CPU, and what is planted in it


class Plant(TorchDispatchMode):
    """`wrong` gets each op, its arguments and a call of its right kernel."""

    def __init__(self, wrong: Callable[..., Any]) -> None:
        super().__init__()
        self.wrong = wrong

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.wrong(func, args, partial(func, *args, **(kwargs or {})))


class Planted(Cpu):
    """The CPU, with a fault in its kernels while it is entered."""

    name = token = "planted"

    def __init__(self, wrong: Callable[..., Any] = lambda func, args, right: right()) -> None:
        self.wrong = wrong

    def activate(self) -> AbstractContextManager[object]:
        return Plant(self.wrong)


def named(name: str, wrong: Callable[[Any, Callable[[], Any]], Any]) -> Planted:
    """A device whose kernel of an op is `wrong`, which gets the arguments and a call of the right one."""
    return Planted(lambda func, args, right: wrong(args, right) if func._opname == name else right())


def copies(of: torch.dtype, becomes: Callable[[torch.Tensor], torch.Tensor]) -> Planted:
    """A device whose copies of a dtype are what `becomes` makes of the right ones."""
    return named("_to_copy", lambda args, right: becomes(right()) if args[0].dtype == of else right())


def without(name: str, of: torch.dtype = torch.float32) -> Planted:
    """A device that has no kernel of an op in a dtype."""

    def wrong(args: Any, right: Callable[[], Any]) -> Any:
        first = args[0] if isinstance(args[0], torch.Tensor) else args[0][0]
        if first.dtype != of:
            return right()
        raise NotImplementedError(f"no {name} of {of}")

    return named(name, wrong)


def ignores_strides(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same size and memory, read as if it were contiguous."""
    return torch.as_strided(tensor, tensor.shape, torch.empty(tensor.shape, device="meta").stride(), 0)


def ignores_offset(args: Any, right: Callable[[], Any]) -> Any:
    """A copy that begins where the storage begins."""
    first = args[0]
    return torch.as_strided(first, first.shape, first.stride(), 0).clone() if first.storage_offset() else right()


def made(**methods: Any) -> Planted:
    """A device with these attributes and methods."""
    device: Planted = type("Made", (Planted,), methods)()
    return device


def raises(error: Exception) -> Callable[..., Any]:
    def method(*args: Any) -> Any:
        raise error

    return method


def promises(overload: str) -> Planted:
    """A device that promises one more overload than the CPU."""
    return made(policies=lambda self: {**Planted.policies(self), overload: "upcast"})


UNSCALE, UPDATE = "_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_"
FP32, BF16 = torch.float32, torch.bfloat16

FAULTS: dict[str, tuple[Planted, str, str, str]] = {
    # a device, the step that names its fault ("!": a run ends there), what happened, and what to do
    "no_start": (made(activate=raises(RuntimeError("too old"))), "start!", "raised RuntimeError: too old (", ""),
    "unnamed": (
        made(type="nosuchdevice", key="AutocastPrivateUse1"),
        "start!",
        "PrivateUse1 is 'privateuseone' in this process, and no backend has named it",
        "call torch.utils.rename_privateuse1_backend('nosuchdevice')",
    ),
    "unpromising": (made(policies=lambda self: {}), "policies", "policies() promises none for AutocastCPU", "return a"),
    "further": (promises("special_bessel_j0"), "policies", "1 promised overloads have no samples", ""),
    "no_bf16": (
        without("_to_copy", BF16),
        "copy of bf16!",
        "raised NotImplementedError: no _to_copy of torch.bfloat16 (tests/devices/test_preflight.py:",
        "or leave 'bf16' out of amp_dtypes",
    ),
    "bf16_changed": (copies(BF16, lambda t: t * 1.5), "copy of bf16!", "a tensor came back as", ""),
    "bool_inverted": (copies(torch.bool, lambda t: ~t), "copy of bool", "a tensor came back as", ""),
    "strides_ignored_in": (copies(FP32, ignores_strides), "copy of fp32!", "a transposed tensor came back as", ""),
    "strides_ignored_out": (made(host=lambda _, tensor: ignores_strides(tensor)), "copy of fp32!", "a transposed", ""),
    "offset_ignored": (named("_to_copy", ignores_offset), "copy of fp32!", "a slice of two columns came back as", ""),
    "elsewhere": (copies(FP32, lambda t: t.to("meta")), "copy of fp32!", "a tensor is on meta", ""),
    "contiguous": (copies(FP32, torch.Tensor.contiguous), "strides", "of strides (1, 3) has strides (2, 1) on", ""),
    "no_add": (without("add"), "add!", "raised NotImplementedError: no add", "make aten::add.Tensor work"),
    "wrong_mul": (named("mul", lambda _, right: right() + 1), "backward", "the gradient came back as", ""),
    "one_region": (made(autocast=lambda *_, **__: torch.autocast("cpu", torch.bfloat16)), "region", "fp16", ""),
    "no_gradient": (made(backward=lambda *args: None), "backward", "the leaf has no gradient", ""),
    "lost_device": (made(synchronize=raises(OSError("lost"))), "synchronize!", "OSError: lost", "every case calls it"),
    "seed_ignored": (made(seed=lambda self: None), "generator", "other numbers after the same seed", "manual_seed_all"),
    "no_unscale": (without(UNSCALE), "scaler", "raised NotImplementedError", "register kernels for aten::_amp"),
    "blind_unscale": (
        named(UNSCALE, lambda args, right: (right(), args[1].zero_())[0]),
        "scaler",
        "found_inf of [1.0, inf] came back as 0.0; expected 1.0",
        "",
    ),
    "idle_update": (named(UPDATE, lambda args, _: args[0]), "scaler", "with found_inf=1.0 came back as 4.0", ""),
}


def findings(device: Planted) -> list[PreflightFinding]:
    """What the preflight of one device finds."""
    return [finding for _, finding in examine((device,))]


def test_a_right_device_passes_every_step() -> None:
    begun: list[str] = []
    found = [finding for _, finding in examine((Planted(),), lambda _, step: begun.append(step))]
    assert {finding.status for finding in found} == {"ok"}, [f.text for f in found if f.status != "ok"]
    assert [finding.step for finding in found] == begun
    dtypes = ("fp32", "fp16", "bf16", "fp64", "int64", "bool")
    assert begun == [
        *("start", "policies", *(f"copy of {dtype}" for dtype in dtypes), "strides", "device index", "add"),
        *("backward", "region", "scaler", "synchronize", "seed", "generator"),
    ]
    assert before_run((Planted(),), lambda device, step: None) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_by_its_step(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device, step, happened, advice = FAULTS[fault]
    step, ends = step.removesuffix("!"), step.endswith("!")
    monkeypatch.chdir(ROOT)
    found = {finding.step: finding for finding in findings(device)}
    wrong = found[step]
    assert wrong.status in ("failed", "missing")
    assert happened in wrong.happened
    assert advice in wrong.advice
    assert wrong.ends == ends
    earlier = [finding for finding in list(found.values())[: list(found).index(step)] if finding.status != "ok"]
    assert earlier == []
    if ends:
        assert list(found)[-1] == step
        with pytest.raises(UsageError, match=r"preflight of device 'planted': ") as raised:
            before_run((device,), lambda device, step: None)
        assert happened in str(raised.value)
        assert "\n" not in str(raised.value)
    else:
        (note, *_) = before_run((device,), lambda device, step: None)
        assert note.startswith(f"{wrong.status}: preflight of device 'planted': {step}: {wrong.happened}; expected: ")


def test_a_dtype_that_is_not_claimed_may_be_missing_and_not_wrong() -> None:
    statuses = {}
    for why, fault in (("missing", without("_to_copy", BF16)), ("failed", copies(BF16, lambda t: t * 1.5))):
        fault.amp_dtypes = ("fp16",)
        statuses[why] = next(finding.status for finding in findings(fault) if finding.step == "copy of bf16")
    assert statuses == {"missing": "missing", "failed": "failed"}


def test_every_virtual_device_and_the_cpu_pass() -> None:
    devices = [device for name, device in known().items() if name == "cpu" or name.startswith("virtual:")]
    wrong = [finding.text for _, finding in examine(devices) if finding.status != "ok"]
    assert wrong == []


def test_a_virtual_device_that_ignores_the_index_it_is_given() -> None:
    class Other(Virtual):
        @contextmanager
        def activate(self) -> Iterator[None]:
            def wrong(func: Any, args: Any, right: Callable[[], Any]) -> Any:
                given = func is aten.empty_strided.default and right.keywords["device"].index == 0
                return func(*args, **{**right.keywords, "device": torch.device("cuda:1")}) if given else right()

            with super().activate(), Plant(wrong):
                yield

    found = [finding for _, finding in examine((Other("cuda", "other", "AutocastCUDA"),)) if finding.status != "ok"]
    assert [finding.step for finding in found] == ["device index"]
    assert found[0].happened == "a tensor copied to cuda:0 is on cuda:1"


# ---- through the command line

ADVICE = "make _copy_from take bf16, or leave 'bf16' out of amp_dtypes"
ONE_CASE = ("--device=broken", "--device-module=broken", "--suite=eager", "--rule=downcast", "--op=mm")


def plant(folder: Path, fault: str) -> None:
    """Write the module `broken` with a fault into a folder."""
    (folder / "broken.py").write_text(PROGRAMS["preflight-broken"].format(fault=fault))


@pytest.mark.parametrize(
    ("fault", "step", "got"),
    [
        ("raise", "copy of bf16", "raised NotImplementedError: bfloat16 is not there yet (broken.py:18 in"),
        *(
            pytest.param(*fault, marks=pytest.mark.nightly)
            for fault in (
                ("crash", "copy of bf16", "the process ended with signal SIGSEGV"),
                ("hang", "copy of bf16", "nothing happened for "),
                (
                    "quit_at_import",
                    "load",
                    "the process ended with exit code 3: ImportError: no licence; RuntimeError: ",
                ),
                ("unseeded", "generator", "torch.rand gave other numbers after the same seed"),
            )
        ),
    ],
)
def test_a_run_ends_before_its_first_case_and_onboard_says_why(tmp_path: Path, fault: str, step: str, got: str) -> None:
    plant(tmp_path, fault)
    ends, hangs = fault != "unseeded", fault == "hang"
    if ends:
        done = run(tmp_path, "run", *ONE_CASE, *(["--timeout=5"] if hangs else []), code=2)
        named = "device module broken" if step == "load" else "device 'broken'"
        assert done.stderr.startswith(f"ampcheck: preflight of {named}: {step}: {got}")
        assert done.stderr.count("\n") == 1
        assert not hangs or f"{got}60 s; it was in __torch_disp" in done.stderr
        if fault == "raise":
            assert done.stderr.endswith(f"; {ADVICE}; ampcheck onboard broken shows every step\n")
        assert not list(tmp_path.glob("reports/runs/*"))
    limit = ["--timeout=30"] if hangs else []
    done = run(tmp_path, "onboard", "broken", "--device-module=broken", *limit, code=2 if ends else 1)
    lines = done.stdout.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("failed")]
    assert lines[at].startswith(f"failed   {step}: ")
    assert lines[at + 1].startswith(f"         got: {got}")
    last = f"A run on broken ends at {step!r}, before its first case."
    command = "ampcheck run --smoke --device broken --device-module broken"
    assert lines[-1] == (last if ends else f"A run begins, and its header names what failed: {command}")
    assert not hangs or f"{got}30 s; it was in __torch_dispatch__ (broken.py:16), called by " in lines[at + 1]
    assert fault != "raise" or lines[at + 2] == f"         next: {ADVICE}"


@pytest.mark.nightly
def test_a_failed_step_makes_a_run_red_unless_the_device_names_it(tmp_path: Path) -> None:
    plant(tmp_path, "unseeded")
    done = run(tmp_path, "run", *ONE_CASE, code=1)
    failed = "preflight of device 'broken': generator: torch.rand gave other numbers after the same seed"
    assert f"No case is red on 1 device, but the run failed: failed: {failed}" in done.stdout
    (file,) = (tmp_path / "reports" / "runs").glob("*.jsonl")
    assert read(file).header["preflight"][0].startswith(f"failed: {failed}")
    plain = run_pytest(tmp_path, str(ROOT / "suites" / "eager"), *ONE_CASE[:2], "--rule=downcast", "--op=mm")
    assert f"failed: {failed}" in plain.stdout, plain.stdout + plain.stderr
    with (tmp_path / "broken.py").open("a", encoding="utf-8") as file:
        file.write("\nDEVICES[0].known_preflight = {'generator': 'it has none of its own'}\n")
    done = run(tmp_path, "run", *ONE_CASE, code=0)
    assert f"known: {failed}" in done.stdout
    assert "Nothing is red on 1 device" in done.stdout


def test_onboard_writes_the_module_of_a_backend(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "your_backend.md").read_text(encoding="utf-8")
    (backend,) = re.findall(r"```python\n(# torch_mydevice\.py\n.*?)```", page, re.DOTALL)
    (tmp_path / "torch_mydevice.py").write_text(backend, encoding="utf-8")
    done = run(tmp_path, "onboard", "--package", "torch_mydevice", code=0)
    assert "AutocastCUDA's list have no autocast kernel: is it a smaller promise?" in done.stdout
    assert done.stdout.endswith("is ready: ampcheck run --smoke --device mydevice --device-module mydevice_ampcheck\n")
    written = (tmp_path / "mydevice_ampcheck.py").read_text(encoding="utf-8")
    assert 'LACKS = (\n    "linear",\n)' in written
    done = run(tmp_path, "onboard", "--package", "torch_mydevice", code=2)
    assert done.stderr.count("\n") == 1
    assert "mydevice_ampcheck.py is there already" in done.stderr
    assert (tmp_path / "mydevice_ampcheck.py").read_text(encoding="utf-8") == written


PROMISED = table("AutocastCUDA", closest(torch.__version__))


@pytest.mark.parametrize(
    ("kernels", "nearest", "constant", "note"),
    [
        ((), PROMISED, "", "no autocast kernel is registered: the module calls register_autocast"),
        (("mm", "exp", "cumsum"), PROMISED, "PROMISED", "116 of the 119 ops of AutocastCUDA's list have no"),
        (
            sorted(PROMISED)[:59],
            PROMISED,
            "PROMISED",
            "60 of the 119 ops of AutocastCUDA's list have no autocast kernel",
        ),
        (sorted(PROMISED)[:60], PROMISED, "LACKS", "59 of the 119 ops of AutocastCUDA's list have no autocast kernel"),
        (PROMISED, PROMISED, "", ""),
    ],
    ids=["none", "few", "under half", "over half", "all"],
)
def test_a_written_module_promises_the_kernels_of_its_backend(
    kernels: Collection[str], nearest: Mapping[str, str], constant: str, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "backend_name", lambda: "cpu")
    monkeypatch.setattr(preflight, "registered", lambda _: set(kernels))
    found = preflight.discover("math")
    module: dict[str, Any] = {}
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("ampcheck.register.register_autocast", lambda *args, **given: calls.append((*args, given)))
    exec(found.module, module)
    dtypes = (torch.float16, torch.bfloat16)
    assert calls == ([] if kernels else [("cpu", {"base": "cuda", "dtypes": dtypes})])
    assert module["DEVICES"][0].policies() == {op: nearest[op] for op in kernels or nearest if op in nearest}
    assert [name for name in ("LACKS", "PROMISED") if name in module] == [constant] * bool(constant)
    assert any(note in line for line in found.notes) if note else not constant


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--package", "numpy"], "importing numpy names no PrivateUse1 backend"),
        (["--package", "absent"], "ModuleNotFoundError: No module named 'absent'"),
        ([], "onboard needs a DEVICE"),
        (["nosuchdevice"], "there is no device named 'nosuchdevice'; there are cpu, "),
    ],
)
def test_onboard_without_a_backend(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, "onboard", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_onboard_of_a_right_device(tmp_path: Path) -> None:
    done = run(tmp_path, "onboard", "cpu", code=0)
    assert "device type 'cpu', autocast dispatch key AutocastCPU" in done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith(("failed", "missing"))] == []
    assert done.stdout.splitlines()[-1] == "cpu is ready: ampcheck run --smoke --device cpu"


# ---- smoke runs


Listed = tuple[list[dict[str, str]], list[dict[str, str]], str]


def kinds(cases: list[dict[str, str]]) -> dict[str, set[tuple[str, ...]]]:
    """What a list of cases touches: on each device, each suite, rule of a suite, compiler and dtype of a region."""
    out: dict[str, set[tuple[str, ...]]] = {"suite": set(), "rule": set(), "compiler": set(), "amp": set()}
    for case in cases:
        device, suite = case["device"], case["suite"]
        out["suite"].add((device, suite))
        out["rule"].add((device, suite, case["rule"]))
        out["amp"].add((device, case["amp"]))
        if "compiler" in case:
            out["compiler"].add((device, suite, case["compiler"]))
    return out


DEVICES = ("cpu", "virtual:cuda", "jax")


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Listed:
    """The keys of a full run, those of a smoke run, and what the latter says of itself."""
    folder, devices = tmp_path_factory.mktemp("smoke"), [f"--device={name}" for name in DEVICES]
    full, smoke = (run(folder, *what, *devices, code=0) for what in (("manifest",), ("run", "--list", "--smoke")))
    cases = {}
    for line in full.stdout.splitlines():
        key, fields = line.split("\t")
        cases[key] = {**dict(zip(("suite", "rule", "id"), key.split("/"), strict=True)), **json.loads(fields)}
    return list(cases.values()), [cases[key] for key in smoke.stdout.split()], smoke.stderr


@pytest.mark.nightly
def test_a_smoke_run_is_small_and_touches_every_kind(listed: Listed) -> None:
    full, smoke, said = listed
    assert len(smoke) < len(full) / 20
    assert kinds(smoke) == kinds(full)
    for name in DEVICES:
        device = known()[name]
        policies = {(device.name, "eager", policy) for policy in device.policies().values()}
        assert policies <= kinds(smoke)["rule"]
    assert f"smoke: {len(smoke)} of {len(full)} cases" in said
    assert f"{len(smoke)} cases; {len(full) - len(smoke)} more were not selected" in said


def test_smoke_and_nightly_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "run", "--smoke", "--nightly", "--device=cpu")
    assert said.startswith("--smoke and --nightly exclude each other")


GIB = 2**30


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    """A GPU with cuDNN, as far as torch says."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda emulated=True: emulated)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    base.promised.cache_clear()
    yield Cuda()
    base.promised.cache_clear()


def test_a_chip_that_only_emulates_bf16_is_tested_in_fp16(gpu: Cuda) -> None:
    assert (gpu.amp_dtypes, {case.amp for case in op_cases(gpu, "downcast")}) == (("fp16",), {"fp16"})


def test_a_kernel_that_lacks_a_dtype_is_unsupported() -> None:
    case = next(case for case in op_cases(Cpu(), "downcast") if case.op == "mm" and case.inputs == "fp32")
    with pytest.raises(Unsupported, match="not implemented for 'Half'"):
        judge_raise(RuntimeError("\"mm_cuda\" not implemented for 'Half'"), Cuda(), plan(case, Cpu()))


def test_what_is_known_of_the_devices_in_its_place_is_known_of_cuda() -> None:
    devices = known()
    own = {(entry.id, glob) for entry in KnownDeviations([devices["cuda"]]).all() for glob in entry.cases}
    for name in ("virtual:cuda", "emulated:cuda"):
        twin = devices[name]
        limits = {entry.id for entry in load(twin.deviations)} if twin.deviations else set()  # of the emulation itself
        entries = [entry for entry in KnownDeviations([twin]).all() if entry.id not in limits]
        globs = {(entry.id, re.sub("-(vcu|emc)$", "-cuda", glob)) for entry in entries for glob in entry.cases}
        tokens = tuple(f"-{device.token}" for device in devices.values() if device.type != "cuda")
        assert {one for one in globs - own if not one[1].endswith(tokens)} == set()
        assert len(globs) > 100


def test_what_is_repeated_is_repeated_with_deterministic_algorithms() -> None:
    with Cuda().repeatable():
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.nightly
def test_an_assertion_on_the_device_costs_its_case_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "lost_device.py").write_text(MODULE + PROGRAMS["preflight-lost"])
    options = ("--device=lost", "--device-module=lost_device", "--op=addmm", "--op=mm", "--run-file=run.jsonl")
    done = run(tmp_path, "run", "--suite=eager", "--rule=downcast", *options)
    found = read(tmp_path / "run.jsonl").results
    red = {key: result.message for key, result in found.items() if result.status != "pass"}
    assert list(red) == ["eager/downcast/addmm-fp64-bf16-lost"], done.stdout + done.stderr
    (message,) = red.values()
    assert "the device takes no more work: RuntimeError: CUDA error: device-side assert triggered" in message
    assert len(found) > 20


def test_each_process_needs_memory_of_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 81000\necho 6144\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert fitting(16, 64 * GIB) == 4
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert fitting(16, 64 * GIB) == 16


@pytest.mark.parametrize("lost", [True, False])
def test_a_region_casts_on_every_one_of_several_gpus(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = known()["virtual:cuda"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    mm = torch.mm
    if lost:
        monkeypatch.setattr(torch, "mm", lambda a, b: mm(a, b).to("cuda:0"))
    found = {finding.step: finding.happened for _, finding in examine((device,))}
    assert found["every device"] == ("on cuda:1 in fp16 it gives a tensor on cuda:0" if lost else "")
    assert found["region"] == ""


CPU, CUDA, META = (DeviceType.__members__[name].value for name in ("CPU", "CUDA", "Meta"))


@pytest.fixture
def guards() -> Iterator[Any]:
    """The guards of this process by device type, put back behind the test."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libc10.so"))
    found = (ctypes.c_void_p * len(DeviceType.__members__)).in_dll(library, graphs._REGISTRY)
    before = found[CUDA]
    yield found
    found[CUDA] = before


def test_nothing_is_fused_for_a_gpu_and_the_settings_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []  # a build without CUDA never fuses for a GPU, whatever it is told
    monkeypatch.setattr(virtual, "can_fuse_on_gpu", lambda: True)
    monkeypatch.setattr(virtual, "set_fuse_on_gpu", asked.append)
    before = get_cudnn_enabled()
    with known()["virtual:cuda"].activate():
        assert asked == [False]
        assert not get_cudnn_enabled()
    assert (asked, get_cudnn_enabled()) == ([False, True], before)


@pytest.mark.parametrize("usable", [False, True])
def test_a_guard_without_a_driver_is_replaced(usable: bool, guards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's guard takes the place of the one that a build with CUDA has."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
    guards[CUDA] = guards[CPU]
    graphs.allow.__wrapped__("cuda")
    assert guards[CUDA] == guards[CPU if usable else META]
