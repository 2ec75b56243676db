"""Scenarios: small programs about regions and state, written in plain torch with the help of `amp`.

    pytestmark = pytest.mark.rule("context")

    @scenario()
    def test_exit_restores(amp):
        with amp.region():
            pass
        amp.assert_equal("is autocast enabled after the region", amp.state()[0], False)

Each scenario runs on every device and in each of its lower precisions.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, NoReturn, TypeVar

import pytest
import torch

from ampcheck.checks.amp import Amp
from ampcheck.compilers.kinds import COMPILERS
from ampcheck.devices.base import Device
from ampcheck.errors import Broken, CheckFailure, Difference, HarnessError, Unsupported, one_line
from ampcheck.observe.dispatcher import lacks_kernel
from ampcheck.observe.recorder import Observation, tensors
from ampcheck.observe.replay import Casting, casting
from ampcheck.samples import op_database
from ampcheck.samples.describe import TensorArg
from ampcheck.spec.torch_dtypes import DTYPES, name_of

F = TypeVar("F", bound=Callable[..., object])


def scenario(
    *,
    types: Sequence[str] = (),
    dtypes: str = "all",
    values: bool = False,
    since: str = "",
    program: Callable[..., str] | None = None,
    **parameters: Iterable[object],
) -> Callable[[F], F]:
    """Mark a test function with a parameter `amp` as a scenario.

    Args:
        types: the device types it makes sense for; none means every one.
        dtypes: "all" runs it in each lower precision of the device, "default" in the one `torch.autocast` defaults to.
        values: whether it needs a device whose tensors hold values.
        since: the torch minor version that made the promise, where that is newer than the oldest one supported.
        program: writes it in plain torch, given `amp` and its parameters, where it is a program that is data; by
            default the program is its own source.
        parameters: its further parameters, each with its values; a case's id has them in this order.
    """
    if dtypes not in ("all", "default"):
        raise TypeError(f'dtypes is {dtypes!r}; it is "all" or "default"')

    def mark(function: F) -> F:
        marked: F = pytest.mark.scenario(types=tuple(types), dtypes=dtypes, values=values, since=since)(function)
        for name, given in parameters.items():
            marked = pytest.mark.parametrize(name, list(given))(marked)
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
        self.instead: tuple[Callable[..., object], DeviceAmp, Mapping[str, object]] | None = None
        """The scenario that reproduces what was found, what it was given, and its parameters."""

    def autocast(self, dtype: torch.dtype | None = None, **options: Any) -> Any:
        return self.device.autocast(name_of(dtype) if dtype else None, **options)

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

    def reproduced_by(self, function: Callable[..., object], amp: DeviceAmp, **params: object) -> None:
        """Name another scenario that shows what was found, with the `amp` that it was given and its parameters."""
        self.instead = function, amp, params

    def unsupported(self, reason: str) -> NoReturn:
        raise Unsupported(reason)

    def refused(self, error: Exception, name: str) -> NoReturn:
        """Raise Unsupported where the dispatcher has no kernel or the device declares such texts, else Broken."""
        if not self.has_values or lacks_kernel(error) or self.device.refuses(error):
            raise Unsupported(one_line(error))
        raise Broken([f"{name} raised {one_line(error)}; it raises that without autocast, too"], error)

    def finish(self) -> None:
        """Raise CheckFailure with every difference noted.

        Where nothing was looked at, raise Unsupported if the scenario says why, else HarnessError.
        """
        if self.differences:
            raise CheckFailure(self.differences)
        if not self.looked_at and self.unjudged:
            raise Unsupported(self.unjudged)
        if not self.looked_at:
            raise HarnessError("the scenario compared nothing, so that it ended shows nothing")
