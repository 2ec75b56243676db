"""A program's behaviour, predicted from the specification alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

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
from ampcheck.spec import state
from ampcheck.spec.dtypes import LOW, is_floating, widest


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The facts of a device type that a prediction needs: the policy of each overload, the dtype it starts with, the
    dtypes its regions may have (None: any)."""

    policies: Mapping[str, str]
    default: str
    supported: tuple[str, ...] | None = LOW


class _Planned(Exception):
    """The exception of a `Raise` step."""


@dataclass(slots=True)
class _Model:
    """`thread`: the thread that runs now. `touched`: which known deviations of PyTorch the program meets."""

    facts: Mapping[str, DeviceFacts]
    process: state.Process
    thread: state.Thread
    seen: list[Seen] = field(default_factory=list)
    last: dict[str, str] = field(default_factory=dict)
    inference: bool = False
    touched: set[str] = field(default_factory=set)

    def states(self, where: str, what: str) -> None:
        for device in self.facts:
            self.seen.append(Seen(where, f"state of {device} {what}", self.thread.state(device)))

    def body(self, program: Program, where: str) -> None:
        for number, step in enumerate(program, 1):
            self.step(step, f"{where}.{number}" if where else str(number))

    def inside(self, region: state.Region, program: Program, where: str, second_body: Program | None = None) -> None:
        """The region around a program, and around itself again around `second_body`."""

        def run() -> None:
            self.body(program, where)
            if second_body is not None:
                self.inside(region, second_body, where)

        self.around(region, run, where)

    def around(self, region: state.Region, run: Callable[[], None], where: str) -> None:
        if region.saved:
            self.touched.add("one region object inside itself")
        self.thread.enter(region)
        try:
            self.states(where, "inside the region")
            run()
        finally:
            self.thread.exit(region)
            self.states(where, "after the region")

    def construct(self, options: Options) -> state.Region:
        return self.thread.construct(
            options.device, options.dtype, enabled=options.enabled, cache_enabled=options.cache_enabled
        )

    def step(self, step: Step, where: str) -> None:
        match step:
            case With(options, body):
                self.inside(self.construct(options), body, where)
            case Decorated(options, body, calls, around):
                region = self.construct(options)

                def call() -> None:
                    for _ in range(calls):
                        self.inside(region, body, where)

                if around is None:
                    call()
                else:
                    self.around(self.construct(around), call, where)
            case Reenter(options, body, second_body, nested):
                region = self.construct(options)
                self.inside(region, body, where, None if not nested else second_body)
                if not nested:
                    self.inside(region, second_body, where)
            case Generator(options, body, between):
                # The state is the thread's, so a region that a suspended generator holds stays in force.
                self.inside(self.construct(options), (*body, *between), where)
            case Op():
                self.op(step, where)
            case UseWeight():
                self.weight(step, where)
            case Set(what, device, value):
                self.set(what, device, value)
                self.states(where, f"after {what} was set")
            case ClearCache():
                self.thread.clear_cache()
            case Raise():
                raise _Planned
            case Catch(body):
                try:
                    self.body(body, where)
                except _Planned:
                    self.seen.append(Seen(where, "exception", "caught"))
                self.states(where, "after what may raise")
            case NoGrad(body):
                self.body(body, where)
            case InferenceMode(body):
                outer, self.inference = self.inference, True
                before = [self.thread.state(device).enabled for device in self.facts]
                try:
                    self.body(body, where)
                finally:
                    self.inference = outer
                    if before != [self.thread.state(device).enabled for device in self.facts]:
                        self.touched.add("enabled set in inference mode")
            case Thread(body):
                self.in_thread(body, where)

    def in_thread(self, body: Program, where: str) -> None:
        outer, grad = self.thread, self.inference
        self.thread, self.inference = self.process.thread(), False
        try:
            self.states(where, "in a new thread")
            self.body(body, where)
        finally:
            self.thread, self.inference = outer, grad
            self.states(where, "after the thread")

    def set(self, what: str, device: str, value: bool | str) -> None:
        if what == "dtype":
            self.thread.set_dtype(device, str(value))
        elif what == "enabled":
            self.thread.set_enabled(device, bool(value))
        else:
            self.thread.set_cache_enabled(bool(value))

    def op(self, step: Op, where: str) -> None:
        given = [state.Tensor(self.last.get(step.device, "fp32") if dtype == LAST else dtype) for dtype in step.inputs]
        self.call(step.op, step.device, given, where)

    def weight(self, step: UseWeight, where: str) -> None:
        facts = self.facts[step.device]
        leaf = step.weight.startswith("leaf")
        dtype = facts.default if step.weight.startswith("low") else "fp32"
        weight = state.Tensor(dtype, name=f"{step.device} {step.weight}", requires_grad=leaf)
        self.call("mm", step.device, [state.Tensor("fp32"), weight], where)

    def call(self, op: str, device: str, given: Sequence[state.Tensor], where: str) -> None:
        facts, ops = self.facts[device], OPS[op]
        policy = facts.policies.get(ops.overload, "fallthrough")
        self._touch(device, policy, given)
        outcome = self.thread.op(device, policy, ops.overload, given, inference=self.inference)
        expected = outcome.expectation
        if expected.error:
            self.seen.append(Seen(where, f"{op} on {device}", "refused"))
            return
        self.seen.append(Seen(where, f"dtypes in the kernel of {op} on {device}", expected.leaves))
        self.seen.append(Seen(where, f"casts made for {op} on {device}", outcome.casts))
        if expected.dtype_kwarg:
            self.seen.append(Seen(where, f"dtype= of {op} on {device}", expected.dtype_kwarg))
        if ops.strict and len(set(expected.leaves)) > 1:
            return  # some implementations refuse, some promote
        result = expected.dtype_kwarg or widest([dtype for dtype in expected.leaves if is_floating(dtype)])
        self.last[device] = result
        self.seen.append(Seen(where, f"result of {op} on {device}", result))

    def _touch(self, device: str, policy: str, given: Sequence[state.Tensor]) -> None:
        now = self.thread.state(device)
        if not now.enabled:
            return
        if policy == "promote" and any(tensor.dtype in LOW and tensor.dtype != now.dtype for tensor in given):
            self.touched.add("promote with the other lower precision")
        if policy == "downcast" and now.cache_enabled and not self.inference:
            for tensor in given:
                other = any(name == tensor.name and dtype != now.dtype for name, dtype in self.process.cache)
                if tensor.is_weight and other:
                    self.touched.add("one weight in two lower precisions")


def _run(program: Program, facts: Mapping[str, DeviceFacts]) -> _Model:
    process = state.Process(
        {device: fact.default for device, fact in facts.items()},
        {device: fact.supported for device, fact in facts.items()},
    )
    machine = _Model(facts, process, process.thread())
    machine.states("0", "at the start")
    try:
        machine.body(program, "")
    except _Planned:
        machine.seen.append(Seen("end", "exception", "not caught"))
    machine.states("end", "at the end")
    return machine


def model(program: Program, facts: Mapping[str, DeviceFacts]) -> list[Seen]:
    """Everything that must be seen when a program runs in a fresh thread.

    `facts` has an entry for each device type whose state is to be looked at, the program's own among them. Raises
    KeyError for a device that has no facts.
    """
    return _run(program, facts).seen


def known_bugs_hit(program: Program, facts: Mapping[str, DeviceFacts]) -> set[str]:
    """The known deviations of PyTorch that a program would meet, in words; each has its own scenario.

    Random programs stay clear of them, so that a difference they show is a new one.
    """
    return _run(program, facts).touched


def compare(got: Sequence[Seen], want: Sequence[Seen]) -> str | None:
    """The first difference in a sentence, or None."""
    for seen, expected in zip(got, want, strict=False):
        if seen.where != expected.where or seen.what != expected.what:
            wanted = f"expected to see {expected.what} at step {expected.where}"
            return f"step {seen.where}: {seen.what} is {shown(seen.value)}; {wanted}"
        if seen.value != expected.value:
            return f"step {seen.where}: {seen.what} is {shown(seen.value)}; expected {shown(expected.value)}"
    if len(got) < len(want):
        missing = want[len(got)]
        return f"the program ended early; expected {missing.what} {shown(missing.value)} at step {missing.where}"
    if len(got) > len(want):
        extra = got[len(want)]
        return f"step {extra.where}: {extra.what} is {shown(extra.value)}; expected the program to have ended"
    return None


def shown(value: object) -> str:
    """A seen value in words."""
    if isinstance(value, state.State):
        cache = "on" if value.cache_enabled else "off"
        return f"{'on' if value.enabled else 'off'} in {value.dtype} with the cache {cache}, depth {value.depth}"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)
