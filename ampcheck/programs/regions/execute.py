"""Run a program on torch and note what is seen."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import torch

from ampcheck.devices.base import Device
from ampcheck.errors import one_line
from ampcheck.observe import isolation
from ampcheck.observe.recorder import Observation
from ampcheck.observe.threads import in_thread
from ampcheck.programs.regions.model import DeviceFacts
from ampcheck.programs.regions.steps import (
    LAST,
    OPS,
    Catch,
    ClearCache,
    Decorated,
    Generator,
    InferenceMode,
    NoGrad,
    Op,
    Options,
    Program,
    Raise,
    Reenter,
    Seen,
    Set,
    Step,
    Thread,
    UseWeight,
    With,
)
from ampcheck.spec.state import State
from ampcheck.spec.torch_dtypes import DTYPES, name_of

_CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "mm": torch.mm,
    "mse_loss": torch.nn.functional.mse_loss,
    "atan2": torch.atan2,
    "cat": lambda *tensors: torch.cat(tensors),
    "sum": torch.sum,
    "mul": torch.mul,
    "bce": torch.nn.functional.binary_cross_entropy,
}


def facts(devices: Sequence[Device]) -> dict[str, DeviceFacts]:
    """Return the facts that the model needs of some devices, by type. A region of CUDA may have any dtype."""
    return {
        device.type: DeviceFacts(
            device.policies(), device.default_amp, None if device.type == "cuda" else device.amp_dtypes
        )
        for device in devices
    }


class _Planned(Exception):
    """The exception of a `Raise` step."""


def state_of(device_type: str) -> State:
    """Return the state that torch reports in this thread for a device type."""
    return State(
        torch.is_autocast_enabled(device_type),
        name_of(torch.get_autocast_dtype(device_type)),
        torch.is_autocast_cache_enabled(),
        isolation.depth(),
    )


class _Run:
    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = {device.type: device for device in devices}
        self.policies = {device.type: device.policies() for device in devices}
        self.seen: list[Seen] = []
        self.last: dict[str, torch.Tensor] = {}
        self.weights: dict[tuple[str, str], torch.Tensor] = {}

    def states(self, where: str, what: str) -> None:
        for device in self.devices:
            self.seen.append(Seen(where, f"state of {device} {what}", state_of(device)))

    def body(self, program: Program, where: str) -> None:
        for number, step in enumerate(program, 1):
            self.step(step, f"{where}.{number}" if where else str(number))

    def construct(self, options: Options) -> torch.autocast:
        with warnings.catch_warnings():
            # A region of an unsupported dtype warns; that it is disabled then is seen in the state.
            warnings.filterwarnings("ignore", message="(?s)In .* autocast, but the target dtype is not supported")
            return self.devices[options.device].autocast(
                options.dtype, enabled=options.enabled, cache_enabled=options.cache_enabled
            )

    def around(self, region: torch.autocast, run: Callable[[], None], where: str) -> None:
        try:
            with region:
                self.states(where, "inside the region")
                run()
        finally:
            self.states(where, "after the region")

    def inside(self, region: torch.autocast, program: Program, where: str, second_body: Program | None = None) -> None:
        """The region around a program, and around itself again around `second_body`."""

        def run() -> None:
            self.body(program, where)
            if second_body is not None:
                self.inside(region, second_body, where)

        self.around(region, run, where)

    def step(self, step: Step, where: str) -> None:
        match step:
            case With(options, body):
                self.inside(self.construct(options), body, where)
            case Decorated():
                self.decorated(step, where)
            case Reenter(options, body, second_body, nested):
                region = self.construct(options)
                self.inside(region, body, where, None if not nested else second_body)
                if not nested:
                    self.inside(region, second_body, where)
            case Generator(options, body, between):
                self.generator(options, body, between, where)
            case Op(op, device, inputs):
                self.op(op, device, inputs, where)
            case UseWeight(device, weight):
                self.call("mm", device, [self.tensor(device, "fp32"), self.weight(device, weight)], where)
            case Set(what, device, value):
                self.set(what, device, value)
                self.states(where, f"after {what} was set")
            case ClearCache():
                torch.clear_autocast_cache()
            case Raise():
                raise _Planned
            case Catch(body):
                try:
                    self.body(body, where)
                except _Planned:
                    self.seen.append(Seen(where, "exception", "caught"))
                self.states(where, "after what may raise")
            case NoGrad(body):
                with torch.no_grad():
                    self.body(body, where)
            case InferenceMode(body):
                with torch.inference_mode():
                    self.body(body, where)
            case Thread(body):
                self.in_thread(body, where)

    def decorated(self, step: Decorated, where: str) -> None:
        def function() -> None:
            self.states(where, "inside the region")
            self.body(step.body, where)

        decorated: Callable[[], None] = self.construct(step.options)(function)

        def call() -> None:
            for _ in range(step.calls):
                try:
                    decorated()
                finally:
                    self.states(where, "after the region")

        if step.around is None:
            call()
        else:
            self.around(self.construct(step.around), call, where)

    def generator(self, options: Options, body: Program, between: Program, where: str) -> None:
        def steps() -> Iterator[None]:
            with self.construct(options):
                self.states(where, "inside the region")
                self.body(body, where)
                yield

        running = steps()
        try:
            for _ in running:
                for number, step in enumerate(between, len(body) + 1):
                    self.step(step, f"{where}.{number}")
        finally:
            running.close()  # type: ignore[attr-defined]  # a generator, which the annotation does not say
            self.states(where, "after the region")

    def in_thread(self, body: Program, where: str) -> None:
        def run() -> None:
            self.states(where, "in a new thread")
            self.body(body, where)

        try:
            in_thread(run, ExitStack)
        finally:
            self.states(where, "after the thread")

    def set(self, what: str, device: str, value: bool | str) -> None:
        if what == "dtype":
            torch.set_autocast_dtype(device, DTYPES[str(value)])
        elif what == "enabled":
            torch.set_autocast_enabled(device, bool(value))
        else:
            torch.set_autocast_cache_enabled(bool(value))

    def tensor(self, device: str, dtype: str) -> torch.Tensor:
        with self.devices[device].activate():
            return torch.full((2, 2), 0.5, dtype=DTYPES[dtype], device=device)

    def weight(self, device: str, name: str) -> torch.Tensor:
        if (device, name) not in self.weights:
            dtype = self.devices[device].default_amp if name.startswith("low") else "fp32"
            with torch.inference_mode(False):
                self.weights[device, name] = self.tensor(device, dtype).requires_grad_(name.startswith("leaf"))
        return self.weights[device, name]

    def op(self, op: str, device: str, inputs: tuple[str, ...], where: str) -> None:
        given = [
            self.last.get(device, self.tensor(device, "fp32")) if dtype == LAST else self.tensor(device, dtype)
            for dtype in inputs
        ]
        self.call(op, device, given, where)

    def call(self, op: str, device: str, given: list[torch.Tensor], where: str) -> None:
        overload = OPS[op].overload
        with self.devices[device].activate():
            whole = {*self.policies[device], overload}
            found = self.devices[device].observe(lambda: _CALLS[op](*given), whole, given)
        self.note(op, device, found, where)

    def note(self, op: str, device: str, found: Observation, where: str) -> None:
        kernel = found.of(OPS[op].overload)
        if kernel is None:
            refused = isinstance(found.error, RuntimeError) and "autocast" in str(found.error)
            value = "refused" if refused else one_line(found.error)
            self.seen.append(Seen(where, f"{op} on {device}", value))
            return
        dtypes = tuple(leaf.got for leaf in kernel.leaves)
        self.seen.append(Seen(where, f"dtypes in the kernel of {op} on {device}", dtypes))
        self.seen.append(Seen(where, f"casts made for {op} on {device}", len(found.casts)))
        if kernel.dtype_kwarg:
            self.seen.append(Seen(where, f"dtype= of {op} on {device}", kernel.dtype_kwarg))
        if OPS[op].strict and len(set(dtypes)) > 1:
            return
        if found.error is not None:
            self.seen.append(Seen(where, f"result of {op} on {device}", one_line(found.error)))
            return
        result = found.outputs[0]
        # Ops want two dimensions; a result that has none is spread over a new tensor of its dtype.
        self.last[device] = self.tensor(device, name_of(result.dtype))
        self.seen.append(Seen(where, f"result of {op} on {device}", name_of(result.dtype)))


def run(program: Program, devices: Sequence[Device]) -> list[Seen]:
    """Run a program on devices of different types and return all that was seen.

    It starts from a fresh state, and leaves one. An exception that is not the program's own is raised.
    """
    machine = _Run(devices)
    own = {device.type: device.default_amp for device in devices}
    isolation.reset(own)
    try:
        machine.states("0", "at the start")
        try:
            machine.body(program, "")
        except _Planned:
            machine.seen.append(Seen("end", "exception", "not caught"))
        machine.states("end", "at the end")
        return machine.seen
    finally:
        isolation.reset(own)
