"""The preflight: what every run asks of a device before its first case, in a second or so; and modules of new devices.

Each step says what was expected and what happened. A step without which every case would fail in the same way ends the
run; the others are notes in its header. `ampcheck onboard` prints the same steps as a checklist, and writes the device
class of a PrivateUse1 backend from what its package makes known to PyTorch.
"""

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from ampcheck import samples
from ampcheck.devices.base import Device
from ampcheck.devices.registry import backend_code, lacking, loaded, told
from ampcheck.errors import UsageError
from ampcheck.observe.dispatcher import UNKNOWN
from ampcheck.observe.torch_private import unscale, update_scale
from ampcheck.register.torch_private import backend_name, has_kernel
from ampcheck.spec.casting import LOW
from ampcheck.spec.policies import KEYS, closest, table
from ampcheck.spec.torch_dtypes import DTYPES, name_of
from ampcheck.spec.torch_private import registered

OK, MISSING, FAILED = "ok", "missing", "failed"

_FLOATS = ((1.0, -2.5, 0.1), (3.0e4, 6.1e-5, -0.0))
_VALUES = {"int64": ((1, -2, 2**40 + 1), (0, 7, -(2**33))), "bool": ((True, False, True), (False, False, True))}
_OFF = "the region turned itself off"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """The outcome of one step.

    `expected`: a sentence. `status`: "ok", "missing" (the device lacks something that a run can do without) or
    "failed". `happened`: what was seen instead. `advice`: what to do. `ends`: whether a run ends here.
    """

    step: str
    expected: str
    status: str = OK
    happened: str = ""
    advice: str = ""
    ends: bool = False

    @property
    def text(self) -> str:
        """Return what happened, what was expected and what to do, in one line."""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.step}: {self.happened}; expected: {self.expected}{advice}"


class _Unlike(Exception):
    """Something else happened than was expected. `ends`, `status`: in place of those of its step."""

    def __init__(self, happened: str, advice: str = "", *, ends: bool | None = None, status: str = FAILED) -> None:
        super().__init__(happened)
        self.advice, self.ends, self.status = advice, ends, status


@dataclass(frozen=True, slots=True)
class _Step:
    """`run` returns where `expected` holds; anything it raises is a failure. `ends`: which then ends a run."""

    name: str
    expected: str
    run: Callable[[], None]
    ends: bool = False
    advice: str = ""


def examine(
    devices: Sequence[Device],
    begin: Callable[[Device, str], None] = lambda device, step: None,
    end: Callable[[Device, PreflightFinding], None] = lambda device, finding: None,
) -> Iterator[tuple[Device, PreflightFinding]]:
    """Take the steps of each device, up to the first that ends a run.

    Every device is started before the first backward pass: autograd knows the devices that exist by then, and no later
    one. `begin` and `end` are called around each step.
    """
    stopped = False

    def taken(device: Device, steps: Iterator[_Step]) -> Iterator[tuple[Device, PreflightFinding]]:
        nonlocal stopped
        for step in steps:
            begin(device, step.name)
            finding = _outcome(device, step)
            end(device, finding)
            yield device, finding
            if stopped := finding.ends:
                return

    for device in devices:
        yield from taken(device, iter((_start(device),)))
        if stopped:
            return
    for device in devices:
        found: list[tuple[Device, PreflightFinding]] = []
        with device.activate():
            found.extend(taken(device, _steps(device)))
        yield from found
        if stopped:
            return


def before_run(devices: Sequence[Device], begin: Callable[[Device, str], None]) -> list[str]:
    """Take the steps of every device of a run and return the notes for its header; a note that begins with `FAILED`
    makes the run red.

    Raises UsageError for a step that ends it.
    """
    notes = []
    for device, finding in examine(devices, begin):
        text = f"preflight of device {device.name!r}: {finding.text}"
        if finding.ends:
            raise UsageError(f"{text}; ampcheck onboard {device.name} shows every step")
        if why := device.known_preflight.get(finding.step, "") if finding.status == FAILED else "":
            notes.append(f"known: {text}; {why}")
        elif finding.status != OK:
            notes.append(f"{finding.status}: {text}")
    return notes


def _outcome(device: Device, step: _Step) -> PreflightFinding:
    finding = PreflightFinding(step.name, step.expected)
    try:
        with backend_code(f"device {device.name!r}"):
            step.run()
    except _Unlike as unlike:
        ends = step.ends if unlike.ends is None else unlike.ends
        advice = unlike.advice or step.advice
        return replace(finding, status=unlike.status, happened=str(unlike), advice=advice, ends=ends)
    except (Exception, SystemExit) as error:  # a backend can raise anything
        return replace(finding, status=FAILED, happened=f"raised {told(error)}", advice=step.advice, ends=step.ends)
    return finding


# ---- the steps
def _start(device: Device) -> _Step:
    def run() -> None:
        with device.activate():
            name = backend_name()
            if device.key == "AutocastPrivateUse1" and name != device.type:
                taken = "no backend has named it" if name == "privateuseone" else "a process has one such backend"
                raise _Unlike(f"PrivateUse1 is {name!r} in this process, and {taken}")
            torch.device(device.type)

    name_it = f"call torch.utils.rename_privateuse1_backend({device.type!r}) where the backend is imported"
    advice = f"{name_it}, and import no other such backend" if device.key == "AutocastPrivateUse1" else ""
    expected = f"the backend starts and makes PyTorch know the device type {device.type!r}"
    return _Step("start", expected, run, ends=True, advice=advice)


def _steps(device: Device) -> Iterator[_Step]:
    yield _Step("policies", "every promised overload exists in this torch and has samples", lambda: _promises(device))
    for dtype in dict.fromkeys(("fp32", *device.amp_dtypes, *LOW, "fp64", "int64", "bool")):
        claimed = dtype == "fp32" or dtype in device.amp_dtypes
        remove = f", or leave {dtype!r} out of amp_dtypes" if claimed and len(device.amp_dtypes) > 1 else ""
        yield _Step(
            f"copy of {dtype}",
            f"{dtype} tensors copied to the device and back keep dtype, shape and values, whatever their strides",
            partial(_copies, device, dtype),
            ends=claimed,
            advice=f"make _copy_from take {dtype}{'' if dtype == 'fp32' else remove}",
        )
    yield _Step(
        "strides", "a transposed tensor copied to the device and back keeps its strides", partial(_strides, device)
    )
    yield _Step("device index", "a tensor's device has the index of the current device", lambda: _index(device))
    yield _Step(
        "add",
        "the sum of two fp32 tensors is the CPU's",
        lambda: _same(device, "the sum", _on(device, _floats()) + _on(device, _floats()), _floats(2.0)),
        ends=True,
        advice="make aten::add.Tensor work in fp32, outside of autocast",
    )
    yield _Step("backward", "the gradient of x * x in fp32 is 2 * x", lambda: _backward(device))
    yield _Step(
        "region",
        f"in a region of {' or '.join(device.amp_dtypes)}, aten::mm of fp32 tensors gives that dtype",
        lambda: _region(device),
    )
    try:
        count = getattr(getattr(torch, device.type, None), "device_count", int)()
    except RuntimeError:  # torch_tpu's answers PyTorch alone
        count = 1
    if device.type != "cpu" and count > 1:
        expected = f"aten::mm of tensors on any of the {count} devices is cast in a region, and stays there"
        yield _Step("every device", expected, partial(_on_every_device, device, count))
    if device.has_values:
        yield _Step("scaler", "the kernels of torch.amp.GradScaler unscale and update", lambda: _scaler(device))
    yield _Step(
        "synchronize", "Device.synchronize() returns", device.synchronize, ends=True, advice="every case calls it"
    )
    if device.has_values:
        yield _Step("seed", "Device.seed() returns", device.seed, ends=True, advice="every case calls it")
        yield _Step("generator", "a seed given twice gives the same random numbers twice", lambda: _generator(device))


def _promises(device: Device) -> None:
    policies = {overload: policy for overload, policy in device.policies().items() if policy != "fallthrough"}
    if not policies:
        raise _Unlike(
            f"policies() promises none for {device.key}",
            'return a table, such as ampcheck.spec.policies.table("AutocastCUDA", closest(torch.__version__))',
        )
    absent = lacking(device)
    without = [o for o, p in policies.items() if p != UNKNOWN and o not in samples.catalogue() and o not in absent]
    parts = [
        f"{len(names)} promised overloads {what}, so no case tests them: {_some(names)}"
        for names, what in ((absent, f"are not in torch {torch.__version__}"), (without, "have no samples"))
        if names
    ]
    if parts:
        raise _Unlike("; ".join(parts), status=MISSING)


def _copies(device: Device, dtype: str) -> None:
    host = torch.tensor(_VALUES.get(dtype, _FLOATS), dtype=DTYPES[dtype])
    try:
        placed = _on(device, host)
    except Exception as error:  # a backend can raise anything
        if dtype in ("fp32", *device.amp_dtypes):
            raise
        raise _Unlike(f"raised {told(error)}, so no case with {dtype} on it is judged", status=MISSING) from error
    _same(device, "a tensor", placed, host)
    _same(device, "a transposed tensor", _on(device, host.t()), host.t())
    _same(device, "a slice of two columns", _on(device, host.narrow(1, 1, 2)), host.narrow(1, 1, 2))
    if dtype == "fp32":  # a device that compiles compiles each of these for each dtype
        _same(device, "a tensor transposed on the device", placed.t(), host.t())
        _same(device, "a slice made on the device", placed.narrow(1, 1, 2), host.narrow(1, 1, 2))


def _strides(device: Device) -> None:
    host = _floats().t()
    placed = _on(device, host)
    back = device.host(placed) if device.has_values else placed
    for what, got in (("on the device", placed), ("back on the CPU", back)):
        if got.stride() != host.stride():
            raise _Unlike(f"a tensor of strides {host.stride()} has strides {got.stride()} {what}")


def _index(device: Device) -> None:
    made = _on(device, _floats())
    if device.type == "cpu":
        return
    index = made.device.index
    wanted = [(made + made).device.index]
    current = getattr(getattr(torch, device.type, None), "current_device", None)
    if device.has_values and current is not None:
        wanted.append(current())
    if index is None or any(index != other for other in wanted):
        now = f", and torch.{device.type}.current_device() is {wanted[1]}" if wanted[1:] else ""
        raise _Unlike(f"a tensor is on {made.device}, its sum on index {wanted[0]}{now}")
    again = _on(device, _floats(), f"{device.type}:{index}").device
    if again != made.device:
        raise _Unlike(f"a tensor copied to {made.device} is on {again}")


def _backward(device: Device) -> None:
    if device.without_autograd:
        raise _Unlike(device.without_autograd, status=MISSING)
    leaf = device.leaf(_on(device, _floats()))
    product = leaf * leaf
    device.backward((product,), (_on(device, torch.ones(2, 3)),))
    if leaf.grad is None:
        raise _Unlike("the leaf has no gradient")
    _same(device, "the gradient", leaf.grad, _floats(2.0))


def _region(device: Device) -> None:
    if device.policies().get("mm") != "downcast":
        raise _Unlike("policies() does not promise downcast for mm, so no cast was looked for", status=MISSING)
    found = {dtype: text for dtype in device.amp_dtypes if (text := _in_region(device, dtype))}
    if not found:
        return
    advice = _without_kernels(device)
    off = [dtype for dtype, text in found.items() if text.startswith(_OFF)]
    supported = f"torch.{device.type}.get_amp_supported_dtype()"
    raise _Unlike(
        "; ".join(f"in {dtype} {text}" for dtype, text in found.items()),
        advice
        or (f"let {supported} list {' and '.join(off)}, or leave it out of amp_dtypes" if off else "")
        or f"let the kernel of aten::mm for {device.key} cast to torch.get_autocast_dtype({device.type!r})",
        ends=bool(advice) and len(found) == len(device.amp_dtypes),
    )


def _on_every_device(device: Device, count: int) -> None:
    for index in range(count):
        for dtype in device.amp_dtypes:
            if found := _in_region(device, dtype, f"{device.type}:{index}"):
                raise _Unlike(f"on {device.type}:{index} in {dtype} {found}")


def _in_region(device: Device, dtype: str, place: str = "") -> str:
    """Return what a region does instead of casting; "" where it casts. `place`: a device of several."""
    a, b = (_on(device, host, *filter(None, [place])) for host in (_floats(), _floats().t()))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with device.autocast(dtype):
                enabled = device.region != "torch.autocast" or torch.is_autocast_enabled(device.type)
                out = torch.mm(a, b)
        except Exception as error:
            return f"it raised {told(error)}"
    if not enabled:
        reason = f": {str(said[0].message).strip().partition(chr(10))[0]}" if said else ""
        return f"{_OFF}{reason}"
    if out.device != a.device:
        return f"it gives a tensor on {out.device}"
    return "" if out.dtype == DTYPES[dtype] else f"it gives {name_of(out.dtype)}"


def _without_kernels(device: Device) -> str:
    """Return what to do where no kernel is registered under a device's autocast key; "" where one is."""
    if not device.observes_composite_ops:  # it answers before the dispatcher does
        return ""
    promised = set(device.policies()) - set(lacking(device))
    if any(has_kernel(f"aten::{overload}", device.key) for overload in promised):
        return ""
    base = "cpu" if device.policies() == table("AutocastCPU", closest(torch.__version__)) else "cuda"
    call = f"ampcheck.register.register_autocast({device.type!r}, base={base!r})"
    return f"no autocast kernels are registered for {device.key}: call {call}"


def _scaler(device: Device) -> None:
    if device.without_autograd:
        raise _Unlike(device.without_autograd, status=MISSING)
    try:
        for gradients, found, scale in ((_floats(), 0.0, 4.0), (torch.tensor((1.0, float("inf"))), 1.0, 2.0)):
            gradient, seen = _on(device, gradients), _on(device, torch.zeros(()))
            unscale([gradient], seen, _on(device, torch.tensor(0.5)))
            _same(device, f"found_inf of {gradients.tolist()}", seen, torch.tensor(found))
            kept, growth = _on(device, torch.tensor(4.0)), _on(device, torch.zeros((), dtype=torch.int32))
            update_scale(kept, growth, seen, 2.0, 0.5, 100)
            _same(device, f"a scale of 4 updated with found_inf={found}", kept, torch.tensor(scale))
            if not found:
                _same(device, "the unscaled gradient", gradient, _floats(0.5))
    except NotImplementedError as error:
        kernels = "aten::_amp_foreach_non_finite_check_and_unscale_ and aten::_amp_update_scale_"
        advice = f"register kernels for {kernels}, which GradScaler calls"
        raise _Unlike(f"raised {told(error)}", advice, status=MISSING) from error


def _generator(device: Device) -> None:
    def draw() -> torch.Tensor:
        return device.host(torch.rand(8, device=device.type)).clone()

    try:
        device.seed()
        first, second = draw(), draw()
        device.seed()
        again = draw()
    except NotImplementedError as error:
        raise _Unlike(f"raised {told(error)}", "make aten::uniform_ work", status=MISSING) from error
    if not torch.equal(first, again):
        advice = f"let torch.{device.type}.manual_seed_all set it"
        raise _Unlike("torch.rand gave other numbers after the same seed", advice)
    if torch.equal(first, second):
        raise _Unlike("torch.rand gave the same numbers twice after one seed")


# ---- tensors
def _floats(times: float = 1.0) -> torch.Tensor:
    """Return fp32 values on the CPU; what they are multiplied by is a power of two and needs no kernel."""
    return torch.tensor([[value * times for value in row] for row in _FLOATS])


def _on(device: Device, host: torch.Tensor, place: str = "") -> torch.Tensor:
    """Return a CPU tensor copied to the device; one without values where the device has none."""
    if not device.has_values:
        return torch.empty_strided(host.size(), host.stride(), dtype=host.dtype, device=place or device.type)
    return host.to(place or device.type, copy=True)


def _same(device: Device, what: str, got: torch.Tensor, want: torch.Tensor) -> None:
    if _kind(got) != _kind(want):
        raise _Unlike(f"{what} is {_kind(got)} on the device; the CPU's is {_kind(want)}")
    if got.device.type != device.type:
        raise _Unlike(f"{what} is on {got.device}")
    if not device.has_values:
        return
    back = device.host(got)
    if _kind(back) != _kind(want):
        raise _Unlike(f"{what} came back as {_kind(back)}; it was {_kind(want)}")
    if not torch.equal(back, want):
        raise _Unlike(f"{what} came back as {back.tolist()}; expected {want.tolist()}")


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


_REGISTER = 'register_autocast("{name}", base="cuda", dtypes=({dtypes},))\n\n'
_SYNCHRONIZE = "\n    def synchronize(self):\n        torch.{name}.synchronize()\n"


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found: the backend's `name`, the `module` that describes it, and `notes` for its author."""

    name: str
    module: str
    notes: tuple[str, ...]


def discover(package: str) -> Discovery:
    """Import a package and describe the PrivateUse1 backend that it makes.

    Raises UsageError where the import fails or names no backend.
    """
    loaded(f"package {package}", partial(importlib.import_module, package))
    name = backend_name()
    if name == "privateuseone":
        raise UsageError(f"importing {package} names no PrivateUse1 backend (torch.utils.rename_privateuse1_backend)")
    own = getattr(torch, name, None)
    dtypes, notes = _dtypes(name, own)
    constants, promise, told = _promise()
    default = name_of(torch.get_autocast_dtype(name))
    if bare := not registered("AutocastPrivateUse1"):
        constants = _REGISTER.format(name=name, dtypes=", ".join(str(DTYPES[low]) for low in dtypes))
    template = Path(__file__).parent / "templates" / "device.txt"
    module = template.read_text(encoding="utf-8").format(
        name=name,
        package=package,
        torch=torch.__version__,
        cls="".join(part.capitalize() for part in name.split("_")),
        register="from ampcheck.register import register_autocast\n" if bare else "",
        constants=constants,
        dtypes=str(dtypes).replace("'", '"'),
        default=default if default in dtypes else dtypes[0],
        unavailable=f'None if torch.{name}.is_available() else "no {name} was found"' if _answers(own) else "None",
        promise=promise,
        synchronize=_SYNCHRONIZE.format(name=name) if hasattr(own, "synchronize") else "",
    )
    return Discovery(name, module, (*notes, *told))


def _answers(own: object) -> bool:
    """Return whether a device module says if its device is there; torch_tpu's takes no question from others."""
    try:
        getattr(own, "is_available")()  # noqa: B009  # a module that nothing types
    except (AttributeError, RuntimeError):
        return False
    return True


def _dtypes(name: str, own: object) -> tuple[tuple[str, ...], list[str]]:
    """Return the lower precisions that regions of a backend may have, and what is to be said of its list."""
    ask = getattr(own, "get_amp_supported_dtype", None)
    if ask is None:
        told = []
        if registered("AutocastPrivateUse1"):  # else the module calls register_autocast, which gives one
            told.append(f"torch.{name} has no get_amp_supported_dtype, without which no region can be made")
        refused = {low: said for low in LOW if (said := _refusal(name, low))}
        told += [f"{low} is left out of amp_dtypes: a tensor of it on {name} raised {refused[low]}" for low in refused]
        return tuple(low for low in LOW if low not in refused) or LOW, told
    listed: Sequence[torch.dtype] = list(ask())
    low = tuple(name_of(dtype) for dtype in listed if dtype in (torch.float16, torch.bfloat16))
    others = [str(dtype) for dtype in listed if dtype not in (torch.float16, torch.bfloat16)]
    notes = [f"get_amp_supported_dtype() lists what is no lower precision: {', '.join(others)}"] if others else []
    return low or LOW, notes if low else [*notes, "get_amp_supported_dtype() lists no lower precision"]


def _refusal(name: str, low: str) -> str | None:
    """Return what a backend raises where a tensor of a dtype is copied to it and back."""
    try:
        torch.ones(2, dtype=DTYPES[low]).to(name).cpu()
    except Exception as error:  # whatever a backend raises is its answer
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def _promise() -> tuple[str, str, list[str]]:
    """Return the constants and body of `policies` for the list of PyTorch's that is nearest, and notes."""
    live, version = registered("AutocastPrivateUse1"), closest(torch.__version__)
    lists: Mapping[str, Mapping[str, str]] = {key: table(key, version) for key in KEYS}
    nearest = max(KEYS, key=lambda key: (len(live & set(lists[key])), live == set(lists[key]), key == "AutocastCUDA"))
    key = nearest if live else "AutocastCUDA"
    whole = f'table("{key}", closest(torch.__version__))'
    lacks = sorted(set(lists[key]) - live)
    if not live:
        told = "no autocast kernel is registered: the module calls register_autocast, with CUDA's list"
        return "", f"return {whole}", [told]
    extra = sorted(live - set(lists[key]))
    told = f"{len(extra)} ops have an autocast kernel and are not on {key}'s list: {', '.join(extra)}"
    notes = [told] if extra else []
    if not lacks:
        return "", f"return {whole}", notes
    told = f"{len(lacks)} of the {len(lists[key])} ops of {key}'s list have no autocast kernel"
    few = len(lacks) <= len(lists[key]) // 2
    names = lacks if few else sorted(live & set(lists[key]))
    constant = "LACKS" if few else "PROMISED"
    rows = "".join(f'    "{overload}",\n' for overload in names)
    chosen = f"{{op: policy for op, policy in {whole}.items() if op {'not ' * few}in {constant}}}"
    what = "take out of this list what the backend means to promise" if few else "these have one"
    notes.append(f"{told}: is it a smaller promise? {constant} of the module says so")
    return f"# {told}: {what}.\n{constant} = (\n{rows})\n\n", f"return {chosen}", notes
