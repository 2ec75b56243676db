"""Scenarios: small programs about regions and state, written in plain torch with the help of `amp`.

    pytestmark = pytest.mark.rule("context")

    @scenario()
    def test_exit_restores(amp):
        with amp.region():
            pass
        amp.assert_equal("is autocast enabled after the region", amp.state()[0], False)

Each scenario runs on every device and in each of its lower precisions.
"""

import ast
import inspect
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any, NoReturn, TypeVar
from unittest.mock import patch

import pytest
import torch

from ampcheck.checks.amp import Amp
from ampcheck.checks.compiled import simulate_cuda
from ampcheck.checks.product import Product
from ampcheck.checks.program import Check, PrintedSource, Unreproducible, merged, preamble, region
from ampcheck.compilers.kinds import COMPILERS, quiet
from ampcheck.devices.base import Device
from ampcheck.devices.registry import known
from ampcheck.errors import Broken, CheckFailure, Difference, HarnessError, Unsupported, error_of, one_line
from ampcheck.observe.dispatcher import added, lacks_kernel
from ampcheck.observe.isolation import reset
from ampcheck.observe.recorder import Casting, Observation, attempt, casting, tensors
from ampcheck.samples import op_database
from ampcheck.samples.describe import TensorArg
from ampcheck.spec.case import Case
from ampcheck.spec.casting import LOW
from ampcheck.spec.policies import closest, table
from ampcheck.spec.torch_dtypes import DTYPES, name_of

F = TypeVar("F", bound=Callable[..., object])


def named(**values: object) -> list[object]:
    """Return the values of a parameter of a scenario, each with the name that a case's id has for it."""
    return [pytest.param(value, id=name) for name, value in values.items()]


def scenario(
    product: Product | None = None,
    *,
    types: Sequence[str] = (),
    dtypes: str = "all",
    values: bool = False,
    since: str = "",
    database: bool = False,
    program: Callable[..., str] | None = None,
    **parameters: Iterable[object],
) -> Callable[[F], F]:
    """Mark a test function with a parameter `amp` as a scenario.

    Args:
        product: the product whose cells are its parameters.
        types: the device types it makes sense for; none means every one.
        dtypes: "all" runs it in each lower precision of the device, "default" in the one `torch.autocast` defaults to.
        values: whether it needs a device whose tensors hold values.
        since: the torch minor version that made the promise, where that is newer than the oldest one supported.
        database: whether only nightly runs have it on a device for which PyTorch's op database takes too long.
        program: writes it in plain torch, given `amp` and its parameters, where it is a program that is data; by
            default the program is its own source.
        parameters: its further parameters, each with its values, or those of `named`; a case's id has them in this
            order.
    """
    if dtypes not in ("all", "default"):
        raise TypeError(f'dtypes is {dtypes!r}; it is "all" or "default"')

    def mark(function: F) -> F:
        about = {"types": tuple(types), "dtypes": dtypes, "values": values, "since": since, "database": database}
        marked: F = pytest.mark.scenario(**about)(function)
        for name, given in parameters.items():
            marked = pytest.mark.parametrize(name, list(given))(marked)
        marked = marked if product is None else product.cells(marked)
        marked.program = program  # type: ignore[attr-defined]  # a function takes any attribute
        return marked

    return mark


def promised(function: F) -> F:
    """Mark a function that works out from the specification what a scenario is to see; its first parameter is `amp`.

    It is called with positional arguments that Python writes as literals, and returns such a value. A reproduction,
    which has no specification, takes what it returned in the run.
    """

    @wraps(function)
    def noted(amp: DeviceAmp, *given: object) -> object:
        found = function(amp, *given)
        amp.promises[(function.__name__, *given)] = found
        return found

    noted.promised = function  # type: ignore[attr-defined]  # the mark; a function takes any attribute
    return noted  # type: ignore[return-value]  # it is called as the function is


class AskedPolicies(dict[str, str]):
    """The policies of a device by overload. `asked` are those that a scenario looked up, or a recorder for it."""

    def __init__(self, policies: Mapping[str, str]) -> None:
        super().__init__(policies)
        self.asked: dict[str, str] = {}

    def __contains__(self, overload: object) -> bool:
        return self.get(str(overload)) is not None

    def get(self, overload: str, default: Any = None) -> Any:  # as of a dictionary
        found = super().get(overload)
        if found is not None:
            self.asked[overload] = found
        return found or default


class DeviceAmp(Amp):
    """The device under test for a scenario, which notes the differences found."""

    def __init__(self, device: Device, dtype: str) -> None:
        super().__init__(device.type, DTYPES[dtype], DTYPES[device.default_amp])
        self.device = device
        self.name, self.key, self.has_values = device.name, device.key, device.has_values
        self.policies: AskedPolicies = AskedPolicies(device.policies())
        self.promises: dict[tuple[object, ...], Any] = {}
        self.script = ""
        """How to reproduce what was found in plain torch, where that is not the scenario's own source."""

    def autocast(self, dtype: torch.dtype | None = None, **options: Any) -> Any:
        name = name_of(dtype) if dtype else None
        if name in LOW and name not in self.device.amp_dtypes and options.get("enabled", True):
            raise Unsupported(f"{self.name} declares no regions of {name}: its amp_dtypes are {self.device.amp_dtypes}")
        return self.device.autocast(name, **options)

    def rand(self, *shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False) -> torch.Tensor:
        self.made += 1
        made = self.device.tensor(TensorArg(shape, None, "unit", seed=self.made), name_of(dtype), 0)
        if not self.has_values:  # a fake tensor of one description is shared; a scenario may change its own
            made = made.clone()
        return made.requires_grad_(requires_grad)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.device.host(tensor)

    def seed(self) -> None:
        self.device.seed()

    def activate(self) -> AbstractContextManager[object]:
        return self.device.activate()

    def observe(self, call: Callable[[], Any], *inputs: torch.Tensor) -> Observation:
        return self.device.observe(call, self.policies, inputs)

    def copies(self, call: Callable[[], Any], tensor: torch.Tensor | None = None) -> list[weakref.ref[torch.Tensor]]:
        if not self.device.observes_composite_ops:
            raise Unsupported(f"copies that {self.name} casts cannot be followed while gradients are recorded")
        return super().copies(call, tensor)

    def op_info(self, name: str) -> Any:
        return op_database.database().get(name)

    def op_samples(self, info: Any, dtype: torch.dtype, count: int, *, grad: bool = False) -> list[Any]:
        return op_database.samples(info, name_of(dtype), self.type, count, grad=grad)

    def compiled(self, compiler: str, function: Callable[..., Any], *inputs: Any, **options: Any) -> Callable[..., Any]:
        return COMPILERS[compiler].make(function, inputs, **options).call

    def j2t(self, fn: Callable[..., Any], cast_inputs: torch.dtype | None = None) -> Callable[..., Any]:
        return self.device.j2t(fn, cast_inputs)

    def casting(
        self,
        overload: str,
        given: Sequence[torch.dtype | None],
        dtype: torch.dtype | None = None,
        *,
        enabled: bool = True,
        dtype_given: bool = False,
    ) -> Casting:
        dtype, policy = dtype or self.dtype, self.policies.get(overload, "fallthrough")
        found = casting(policy, overload, given, dtype, enabled=enabled, dtype_given=dtype_given)
        self.promises["casting", overload, tuple(given), dtype, enabled, dtype_given] = tuple(found)
        return found

    def assert_cast(
        self, name: str, call: Callable[[], object], *, runs: bool = False
    ) -> tuple[list[torch.Tensor], bool]:
        """Note where a call in a region differs from the same call with explicit casts; see `Amp.assert_cast`.

        On a device without a replay, note a call that raises in a region alone.
        """
        if self.device.observes_composite_ops:
            return super().assert_cast(name, call, runs=runs)
        self.unjudged = f"PyTorch takes the ops of {name} apart before {self.name} is asked, so none is cast explicitly"
        outside, inside = self._outcome(call, nullcontext()), self._outcome(call, self.region())
        if not isinstance(inside, Exception):
            return inside, False
        if isinstance(outside, Exception):
            self.unjudged = one_line(inside)
        else:
            said = f"{name} raised {one_line(inside)} in a region; outside it raises nothing"
            self.note(name, [Difference(said, inside)])
        return [], False

    def _outcome(
        self, call: Callable[[], object], region: AbstractContextManager[object]
    ) -> list[torch.Tensor] | Exception:
        """Return the tensors that a call gives in a region, or what it raises."""
        self.seed()
        try:
            with region:
                return list(tensors(call()))
        except Exception as error:  # the call under test may raise anything
            return error

    def check(self, right: bool, what: str, found: str, error: Exception | None = None) -> None:
        self.looked_at += 1
        if not right:
            self.differences.append(Difference(f"{what}: {found}", error) if error else f"{what}: {found}")

    def note(self, what: str, differences: Sequence[str]) -> None:
        self.looked_at += 1
        self.differences += differences

    def unsupported(self, reason: str) -> NoReturn:
        raise Unsupported(reason)

    def refused(self, error: Exception, name: str) -> NoReturn:
        """Raise Unsupported where the dispatcher has no kernel or the device declares such texts, else Broken."""
        if not self.has_values or lacks_kernel(error) or self.device.refuses(error):
            raise Unsupported(one_line(error))
        raise Broken([f"{name} raised {one_line(error)}; it raises that without autocast, too"], error)

    def finish(self) -> None:
        """Raise CheckFailure with every difference noted, or Unsupported where each is about a missing kernel.

        Where nothing was looked at, raise Unsupported if the scenario says why, else HarnessError.
        """
        errors = [error_of(text) for text in self.differences]
        if errors and all(error and lacks_kernel(error) for error in errors):
            self.differences.clear()
            raise Unsupported(one_line(errors[0])) from errors[0]
        if self.differences:
            raise CheckFailure(self.differences)
        if not self.looked_at and self.unjudged:
            raise Unsupported(self.unjudged)
        if not self.looked_at:
            raise HarnessError("the scenario compared nothing, so that it ended shows nothing")


def _names(overloads: Iterable[str]) -> set[str]:
    return {overload.partition(".")[0] for overload in overloads}


class ScenarioCheck(Check):
    """A scenario: a test function of a suite file, with the values of its parameters beside `amp`."""

    def __init__(
        self,
        function: Callable[..., object],
        params: Mapping[str, object],
        fixtures: Mapping[str, object] | None = None,
    ) -> None:
        self.function, self.params, self.fixtures = function, params, fixtures or {}
        self.amp: DeviceAmp | None = None
        """What it was given when it ran; None for one that ended its process."""

    def takes(self, case: Case) -> bool:
        """Return whether a case is this scenario."""
        return case.op == self.function.__name__.removeprefix("test_")

    @contextmanager
    def entered(self, case: Case, device: Device) -> Iterator[DeviceAmp]:
        """Enter a device around a call of the scenario; then raise what it found.

        One that raises on a backend runs once more without autocast; see `_outside`.
        """
        amp = self.amp = DeviceAmp(device, case.amp)
        with ExitStack() as stack:
            stack.enter_context(device.activate())
            if case.compiler:
                stack.enter_context(simulate_cuda(device))
                stack.enter_context(quiet())
            try:
                yield amp
                amp.finish()
            except (Unsupported, HarnessError, CheckFailure, AssertionError) as error:
                if not isinstance(error, HarnessError) and (amp.differences or isinstance(error, AssertionError)):
                    self._ask_for_promised_policies(case, device, error)
                raise
            except Exception as error:
                if case.suite in ("eager", "autograd") and amp.type != "cpu" and amp.has_values:
                    same = self._outside(case, device)
                    as_here = type(same) is type(error) and str(same) == str(error)
                    if as_here and self._outside(case, known()["cpu"]) is None:
                        amp.refused(error, "it")
                self._ask_for_promised_policies(case, device, error)
                raise

    def _ask_for_promised_policies(self, case: Case, device: Device, error: Exception) -> None:
        """Raise Unsupported where the scenario passes once the ops that the device does not promise have policies.

        A device that promises the whole of CUDA's or the CPU's list has all that PyTorch's scenarios ask for.
        """
        promised, version = device.policies(), closest(torch.__version__)
        on_cuda, on_cpu = (table(key, version) for key in ("AutocastCUDA", "AutocastCPU"))
        whole = any(_names(listed) <= _names(promised) for listed in (on_cuda, on_cpu))
        if whole or device.key != "AutocastPrivateUse1":
            return
        needed = self._passes_with(case, device, {o: policy for o, policy in on_cuda.items() if o not in promised})
        for overload in sorted(needed):
            if self._passes_with(case, device, rest := {o: on_cuda[o] for o in needed if o != overload}):
                needed = set(rest)
        if needed:
            if self.amp:
                self.amp.differences.clear()
            told = f"{device.name} does not promise policies that the case needs: {', '.join(sorted(needed))}"
            raise Unsupported(told) from error

    def _passes_with(self, case: Case, device: Device, policies: Mapping[str, str]) -> set[str]:
        """Run the scenario with policies that the device lacks. Returns those that acted, none where it does not pass.

        It passes as well where it is unsupported for another reason.
        """
        reset({device.type: device.default_amp})
        amp = DeviceAmp(device, case.amp)
        with added(device.type, policies) as calls:
            amp.policies.update({overload: policies[overload] for overload in calls})
            try:
                with quiet() if case.compiler else nullcontext():  # Dynamo keeps what it compiled without the kernels
                    self.function(amp, **self.params, **self.fixtures)
                amp.finish()
            except Exception as raised:  # it may raise anything
                if amp.differences or not isinstance(raised, Unsupported):
                    return set()
        return {overload for overload, count in calls.items() if count}

    def run(self, case: Case, device: Device) -> list[str]:
        reset({device.type: device.default_amp})
        try:
            with self.entered(case, device) as amp:
                self.function(amp, **self.params, **self.fixtures)
        except Broken:
            raise
        except CheckFailure as failure:
            return failure.differences
        finally:
            reset({device.type: device.default_amp})
        return []

    def _outside(self, case: Case, device: Device) -> Exception | None:
        """Return what the scenario raises on a device where regions do nothing."""
        off: dict[str, Any] = {
            "__init__": lambda self, *_, **__: None,
            "__enter__": lambda self: self,
            "__exit__": lambda *_: None,
        }
        reset({device.type: device.default_amp})
        # A device's region may be of another class than torch.autocast.
        region = patch.object(device, "autocast", lambda *_, **__: torch.autocast(device.type))
        with patch.multiple(torch.autocast, **off), region:
            return attempt(lambda: self.function(DeviceAmp(device, case.amp), **self.params, **self.fixtures))[1]

    def describe(self, case: Case) -> str:
        return inspect.cleandoc(self.function.__doc__ or "").partition("\n\n")[0]

    def program(
        self, case: Case, device: Device, message: str = "", modules: Sequence[str] = (), *, ran: bool = True
    ) -> str:
        """Write the scenario in plain torch: it prints a line per check, `ok` or `FAIL` with what was found.

        For a scenario that cannot be put so, it is a comment that says why.
        """
        amp = self.amp if ran else None
        if amp and amp.script:
            return amp.script
        if write := getattr(self.function, "program", None):
            return str(write(DeviceAmp(device, case.amp), **self.params))
        try:
            return self._program(amp, DeviceAmp(device, case.amp), modules)
        except Unreproducible as error:
            reason = f"This scenario needs {error}, for which plain torch has nothing: run it with the pytest line."
            lines = [*preamble(device, modules), "", f"# {reason}", "# Its region is:"]
            return "\n".join([*lines, f"with {region(device, case.amp)}:", "    pass"])

    def _program(self, ran: DeviceAmp | None, amp: DeviceAmp, modules: Sequence[str]) -> str:
        """Return the program: its source, that of `Amp`, and the call. `ran`: what it was given, if it ran here."""
        device = amp.device
        arguments = "".join(f", {name}={self._literal(value)}" for name, value in self.params.items())
        source = self._source({})
        if kept := source.single_entries(self.params):
            source = self._source(kept)
        if "observe" in source.names and not device.observes_composite_ops:
            raise Unreproducible(f"the recorder of {device.name}, which is inside of it")
        compilers = [name for name in COMPILERS if name in source.strings or name in self.params.values()]
        compiled = bool(self.params.get("compiler"))  # it ran where CUDA seemed to be there
        lines = [
            f"amp = Amp({device.type!r}, {amp.dtype}, {amp.default})",
            *_facts(source, device, compilers, simulate_cuda=compiled),
            *(_data(source, ran.policies.asked, ran.promises) if ran else self._data_unseen(source, amp)),
            f"{self.function.__name__}(amp{arguments})",
        ]
        if "unjudged" in source.attributes:
            lines.append('if amp.unjudged:\n    print("not judged:", amp.unjudged)')
        blocks = [*source.text(), "\n".join(lines)]
        head = [*merged(source.imports), *preamble(device, modules, simulate_cuda=compiled)]
        return "\n\n".join(["from __future__ import annotations", "\n".join(head), *blocks])

    def _source(self, kept: Mapping[str, object]) -> PrintedSource:
        """Return the source of the scenario, of what it is given, and of `Amp` as far as they use it."""
        source = PrintedSource(self.function.__module__, {"Amp"}, kept)
        source.add(self.function.__name__)
        for value in self.params.values():
            if name := self._global_name(value):
                source.add(name)
        source.add("Amp", Amp.__module__)
        source.text()
        return source

    def _data_unseen(self, source: PrintedSource, amp: DeviceAmp) -> list[str]:
        """Return the lines of `_data` for a scenario that ended its process.

        It has the policies that its source names, and what its parameters alone decide.
        """
        promises: dict[tuple[object, ...], object] = {}
        for name in source.names:
            if function := getattr(self.function.__globals__.get(name), "promised", None):
                given = [self.params[each] for each in list(inspect.signature(function).parameters)[1:]]
                promises[(name, *given)] = function(amp, *given)
        return _data(source, {name: p for name, p in amp.policies.items() if name in source.strings}, promises)

    def _global_name(self, value: object) -> str:
        """Return the name of a class or a function of the suite file; "" for another value."""
        name = getattr(value, "__name__", "")
        return name if name and self.function.__globals__.get(name) is value else ""

    def _literal(self, value: object) -> str:
        """Return a value as a program has it. Raises Unreproducible where it has no such form."""
        if isinstance(value, torch.dtype):
            return str(value)
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if name := self._global_name(value):
            return name
        try:
            if ast.literal_eval(repr(value)) == value:
                return repr(value)
        except (ValueError, SyntaxError):
            pass
        raise Unreproducible(f"the {type(value).__name__} that pytest gives it")


_AUTOCAST = """\
def autocast(dtype=None, **options):  # torch.autocast("cuda") switches itself off where CUDA is absent
    absent, supported = "torch.cuda.amp.common.amp_definitely_not_available", "torch.cuda.is_bf16_supported"
    with mock.patch(absent, lambda: False), mock.patch(supported, lambda *args: True):
        return torch.autocast("cuda", dtype=dtype, **options)

amp.autocast = autocast"""
_COMPILED = """\
def compiled(compiler, function, *inputs, **options):
    how, given = compilers[compiler]
    return how(function, inputs, **{**given, **options}).call

amp.compiled = compiled"""


def _facts(source: PrintedSource, device: Device, compilers: Sequence[str], *, simulate_cuda: bool) -> list[str]:
    """Return the lines that say of `amp` how the device differs from one of PyTorch's own that is there.

    `simulate_cuda`: whether the whole program believes that CUDA is there.
    """
    used = source.attributes
    lines = [f"amp.{name} = {getattr(device, name)!r}" for name in ("name", "key") if name in used]
    if not device.has_values:
        lines += ["amp.has_values = False", *(["amp.activate = lambda: fake"] if "activate" in used else [])]
    if "autocast" in used and device.region != "torch.autocast":
        lines.append(f"amp.autocast = lambda dtype=None, **more: {device.region}(amp.type, dtype=dtype, **more)")
    elif "autocast" in used and device.type == "cuda" and not device.has_values and not simulate_cuda:
        lines += ["from unittest import mock", _AUTOCAST]
    if "compiled" in used:
        rows = []
        for name in compilers:
            how, given = COMPILERS[name].how, dict(COMPILERS[name].given)
            source.add(how.__name__, how.__module__)
            rows.append(f"    {name!r}: ({how.__name__}, {given}),")
        lines += ["\n".join(["compilers = {", *rows, "}"]), _COMPILED]
    if "j2t" in used:
        origin = "ampcheck.jax_device.interop.functions" if "ampcheck" in "".join(device.setup) else "torchax.interop"
        lines.append(f"from {origin} import j2t_autograd\n\namp.j2t = j2t_autograd")
    return lines


def _data(source: PrintedSource, policies: Mapping[str, str], promises: Mapping[Any, object]) -> list[str]:
    """Return the lines with the policies and the promises that a scenario asked for."""
    lines = []
    for name, values, what in (
        ("policies", policies, "PyTorch documents for these ops"),
        ("promises", promises, "the specification says"),
    ):
        if name in source.attributes:
            rows = "\n    ".join(["{", *(f"{key!r}: {value!r}," for key, value in values.items())])
            lines.append(f"amp.{name} = {rows}\n}}  # what {what}")
    return lines
