"""Random programs of regions, as text, run on torch and on the model of `ampcheck.spec.state`, and compared.

A program is a function `program(amp)` that calls the methods of `Torch`."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ContextDecorator, closing, contextmanager, nullcontext
from dataclasses import astuple
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from hypothesis import assume, reject
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from ampcheck.checks.program import Needed, written
from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.virtual import DEVICES
from ampcheck.errors import Unsupported, one_line
from ampcheck.observe import isolation
from ampcheck.observe.dispatcher import lacks_kernel
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.torch_private import AutoDispatchBelowAutograd
from ampcheck.programs.search import Search
from ampcheck.spec import state as spec
from ampcheck.spec.casting import LOW, is_floating, widest
from ampcheck.spec.torch_dtypes import DTYPES, name_of

Lines: TypeAlias = st.SearchStrategy[tuple[str, ...]]
Texts: TypeAlias = st.SearchStrategy[str]

OPS = {
    "torch.mm": 2,
    "torch.nn.functional.mse_loss": 2,
    "torch.atan2": 2,
    "torch.cat": 2,
    "torch.sum": 1,
    "torch.mul": 2,
    "torch.nn.functional.binary_cross_entropy": 2,
}
"""The ops of programs, and how many tensors each takes. They meet every policy but append, on some device."""

_DEPTH = 3


def indented(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of a block."""
    return tuple(f"    {line}" for line in lines)


def program(lines: Sequence[str]) -> str:
    """Return the text of a program of some lines."""
    return "\n".join(("def program(amp):", *indented(lines)))


def programs(devices: Sequence[str]) -> Texts:
    """Draw programs of every kind of step over some device types, the first of them before all."""
    weights = _weight(_mostly_first(devices), ("leaf", "leaf2", "frozen", "low"))
    leaves = _weighted(
        (8, _ops(devices)), (4, weights), (3, _setters(devices)), (1, _line("amp.clear_cache()")), (1, _RAISE)
    )
    return _program(leaves, _region(devices, ("fp16", "bf16", None, "fp32")))


def weight_programs(devices: Sequence[str]) -> Texts:
    """Draw programs about the weight cache: products with weights, in regions that mostly have the same dtype."""
    use = _weight(_mostly_first(devices), ("leaf", "leaf", "leaf2", "frozen"))
    cache = st.booleans().map(lambda on: (f"amp.set_cache_enabled({on})",))
    leaves = _weighted((12, use), (1, cache), (1, _line("amp.clear_cache()")), (1, _RAISE))
    return _program(leaves, _region(devices, (None, None, None, "bf16")))


def _line(text: str) -> Lines:
    return st.just((text,))


_RAISE = _line("raise PlannedError")


def _weighted(*weighted: tuple[int, Lines]) -> Lines:
    # st.one_of would count the parts of nested strategies.
    return st.sampled_from([each for weight, each in weighted for _ in range(weight)]).flatmap(lambda chosen: chosen)


def _mostly_first(devices: Sequence[str]) -> Texts:
    return st.sampled_from((devices[0], devices[0], *devices)).map(repr)


def _region(devices: Sequence[str], dtypes: Sequence[str | None]) -> Texts:
    def text(device: str, dtype: str | None, enabled: bool, cache_enabled: bool | None) -> str:
        named = {"dtype": dtype and DTYPES[dtype], "enabled": enabled and None, "cache_enabled": cache_enabled}
        return f"amp.autocast({', '.join([device, *(f'{k}={v}' for k, v in named.items() if v is not None)])})"

    return st.builds(
        text,
        _mostly_first(devices),
        st.sampled_from(dtypes),
        st.sampled_from((True, True, True, False)),
        st.sampled_from((None, None, True, False)),
    )


def _new(device: str, dtype: str) -> str:
    return f"amp.last({device})" if dtype == "last" else f"amp.new({device}, {DTYPES[dtype]})"


@st.composite
def _ops(draw: st.DrawFn, devices: Sequence[str]) -> tuple[str, ...]:
    op, device = draw(st.sampled_from(tuple(OPS))), draw(_mostly_first(devices))
    # binary_cross_entropy has no kernel for the lower precisions on every device.
    dtypes = ("fp32",) if "entropy" in op else ("fp32", "fp32", "last", "fp64", "fp16", "bf16")
    inputs = [_new(device, draw(st.sampled_from(dtypes))) for _ in range(OPS[op])]
    return (f"amp.op({device}, {op}, {', '.join(inputs)})",)


def _weight(device: Texts, names: Sequence[str]) -> Lines:
    def text(device: str, name: str) -> tuple[str, ...]:
        return (f"amp.op({device}, torch.mm, {_new(device, 'fp32')}, amp.weight({device}, {name!r}))",)

    return st.builds(text, device, st.sampled_from(names))


def _setters(devices: Sequence[str]) -> Lines:
    device, dtype = _mostly_first(devices), st.sampled_from(("fp16", "bf16"))
    return st.one_of(
        st.builds(lambda device, on: (f"amp.set_enabled({device}, {on})",), device, st.booleans()),
        st.builds(lambda device, dtype: (f"amp.set_dtype({device}, {DTYPES[dtype]})",), device, dtype),
        st.booleans().map(lambda on: (f"amp.set_cache_enabled({on})",)),
    )


def _program(leaves: Lines, region: Texts) -> Texts:
    # By levels and not with st.recursive, which draws mostly programs without any region. A name has the number of its
    # level, so that no block takes a name from the block around it.
    step = leaves
    for level in range(_DEPTH):
        body = st.lists(step, min_size=1, max_size=4).map(lambda steps: sum(steps, ()))
        step = _weighted(
            (6 if level < _DEPTH - 1 else 1, leaves),
            (4, st.builds(lambda region, body: (f"with {region}:", *indented(body)), region, body)),
            (1, _decorated(f"f{level}", region, body)),
            (1, _reentered(f"r{level}", region, body)),
            (1, _generator(f"g{level}", region, body)),
            (1, body.map(lambda body: ("try:", *indented(body), "except PlannedError:", "    amp.caught()"))),
            (1, body.map(lambda body: ("with amp.no_grad():", *indented(body)))),
            (1, body.map(lambda body: ("with amp.inference_mode():", *indented(body)))),
            (1, _thread(f"t{level}", body)),
        )
    return st.lists(step, min_size=1, max_size=3).map(lambda steps: program(sum(steps, ())))


def _decorated(name: str, region: Texts, body: Lines) -> Lines:
    """Draw a function that is decorated here and called once or twice, perhaps in another region."""

    def text(region: str, body: Sequence[str], calls: int, around: str | None) -> tuple[str, ...]:
        called = (f"{name}()",) * calls
        made = f"@{region}", f"def {name}():", *indented(body)
        return (*made, f"with {around}:", *indented(called)) if around else (*made, *called)

    return st.builds(text, region, body, st.integers(1, 2), st.none() | region)


def _reentered(name: str, region: Texts, body: Lines) -> Lines:
    """Draw a region object that is entered twice in turn."""

    def text(region: str, first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
        return f"{name} = {region}", f"with {name}:", *indented(first), f"with {name}:", *indented(second)

    return st.builds(text, region, body, body)


def _generator(name: str, region: Texts, body: Lines) -> Lines:
    """Draw a generator that is suspended inside a region, and is closed whatever is raised meanwhile."""

    def text(region: str, body: Sequence[str], between: Sequence[str]) -> tuple[str, ...]:
        made = f"def {name}():", *indented((f"with {region}:", *indented((*body, "yield"))))
        loop = f"for _ in {name}_steps:", *indented(between)
        return (*made, f"with closing({name}()) as {name}_steps:", *indented(loop))

    return st.builds(text, region, body, body)


def _thread(name: str, body: Lines) -> Lines:
    look = "amp.look('in a new thread')"
    return body.map(lambda body: (f"def {name}():", *indented((look, *body)), f"amp.in_thread({name})"))


Body = Callable[[], None]
OVERLOADS = {"mul": "mul.Tensor"}
STRICT = ("mm", "binary_cross_entropy")
"""The ops that some implementations refuse for inputs of different dtypes, which others promote."""
Seen = tuple[int, str, object]
"""An observation: the line of the program, what was seen, and its value."""


class RegionLike(Protocol):
    """A context manager that also decorates, as `torch.autocast` is."""

    def __enter__(self) -> object: ...

    def __exit__(self, kind: Any, error: Any, traceback: Any, /) -> object: ...

    def __call__(self, function: Body, /) -> Body: ...


class PlannedError(Exception):
    """The exception that programs raise."""


class Kernel(NamedTuple):
    """The kernel that a call ran: the dtypes of its tensors, None where it did not run; how many casts were made; and
    the dtype of the result, or how it failed."""

    dtypes: tuple[str, ...] | None
    casts: int
    dtype_kwarg: str | None
    result: str


class LookedAt:
    """A region whose state is looked at inside of it and after it; it decorates, too."""

    def __init__(self, region: RegionLike, look: Callable[[str], None]) -> None:
        self.region, self.look = region, look

    def __enter__(self) -> None:
        self.region.__enter__()
        self.look("inside the region")

    def __exit__(self, *raised: Any) -> None:
        try:
            self.region.__exit__(*raised)
        finally:
            self.look("after the region")

    def __call__(self, function: Body) -> Body:
        def inside() -> None:
            self.look("inside the region")
            function()

        decorated = self.region(inside)

        def call() -> None:
            try:
                decorated()
            finally:
                self.look("after the region")

        return call


class Side:
    """Notes in `seen` what a program sees. `defaults`: its device types, and the dtype each has before one is set."""

    def __init__(self, defaults: Mapping[str, torch.dtype]) -> None:
        self.defaults = defaults
        self.seen: list[Seen] = []
        self.results: dict[str, str] = {}

    def run(self, program: "Callable[[Side], None]") -> list[Seen]:
        self.code = program.__code__
        self.look("at the start")
        try:
            program(self)
        except PlannedError:
            self.note("exception", "not caught")
        self.look("at the end")
        return self.seen

    def note(self, what: str, value: object) -> None:
        frame, line = sys._getframe(), 0  # the program comes last in its file
        while frame.f_back and frame.f_code is not Side.run.__code__ and line <= 0:
            frame = frame.f_back
            if frame.f_code.co_filename == self.code.co_filename:
                line = frame.f_lineno - self.code.co_firstlineno
        self.seen.append((max(line, 0), what, value))

    def look(self, what: str) -> None:
        for device in self.defaults:
            self.note(f"state of {device} {what}", self.state(device))

    def state(self, device: str) -> tuple[bool, str, bool, int]:
        raise NotImplementedError

    def caught(self) -> None:
        self.note("exception", "caught")
        self.look("after the exception")

    def ran(self, op: str, device: str, kernel: Kernel) -> None:
        if kernel.dtypes is None:
            self.note(f"{op} on {device}", "refused" if "autocast" in kernel.result else kernel.result)
            return
        self.note(f"dtypes in the kernel of {op} on {device}", kernel.dtypes)
        self.note(f"casts made for {op} on {device}", kernel.casts)
        if kernel.dtype_kwarg:
            self.note(f"dtype= of {op} on {device}", kernel.dtype_kwarg)
        if op not in STRICT or len(set(kernel.dtypes)) == 1:
            if kernel.result in DTYPES:
                self.results[device] = kernel.result
            self.note(f"result of {op} on {device}", kernel.result)


class Torch(Side):
    """Does what a program says on torch. `thread`: what each new thread calls first."""

    def __init__(self, defaults: Mapping[str, torch.dtype], thread: Callable[[], object] | None = None) -> None:
        super().__init__(defaults)
        self.thread = thread
        self.weights: dict[tuple[str, str], torch.Tensor] = {}

    def state(self, device: str) -> tuple[bool, str, bool, int]:
        torch.autocast_increment_nesting()
        depth = torch.autocast_decrement_nesting()
        dtype = name_of(torch.get_autocast_dtype(device))
        return torch.is_autocast_enabled(device), dtype, torch.is_autocast_cache_enabled(), depth

    def region(self, device: str, dtype: torch.dtype | None, enabled: bool, cache_enabled: bool | None) -> RegionLike:
        return torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    def autocast(
        self, device: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> LookedAt:
        with warnings.catch_warnings():  # a region of an unsupported dtype warns, and is seen to be disabled
            warnings.filterwarnings("ignore", message="(?s)In .* autocast, but the target dtype is not supported")
            return LookedAt(self.region(device, dtype, enabled, cache_enabled), self.look)

    def no_grad(self) -> torch.no_grad:
        return torch.no_grad()

    def inference_mode(self) -> torch.inference_mode:
        return torch.inference_mode()

    def set_enabled(self, device: str, enabled: bool) -> None:
        torch.set_autocast_enabled(device, enabled)
        self.look("after enabled was set")

    def set_dtype(self, device: str, dtype: torch.dtype) -> None:
        torch.set_autocast_dtype(device, dtype)
        self.look("after dtype was set")

    def set_cache_enabled(self, enabled: bool) -> None:
        torch.set_autocast_cache_enabled(enabled)
        self.look("after cache_enabled was set")

    def clear_cache(self) -> None:
        torch.clear_autocast_cache()

    def in_thread(self, body: Body) -> None:
        try:
            with ThreadPoolExecutor(1, initializer=self.thread) as pool:
                pool.submit(body).result()
        finally:
            self.look("after the thread")

    def new(self, device: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((2, 2), 0.5, dtype=dtype, device=device)

    def last(self, device: str) -> torch.Tensor:
        """Return a tensor of the last result's dtype."""
        return self.new(device, DTYPES[self.results.get(device, "fp32")])

    def weight(self, device: str, name: str) -> torch.Tensor:
        """Return the weight of a name: a leaf, one that is "frozen", or a "low" one of the device's default dtype."""
        if (device, name) not in self.weights:
            with torch.inference_mode(False):
                made = self.new(device, self.defaults[device] if name.startswith("low") else torch.float32)
            self.weights[device, name] = made.requires_grad_(name.startswith("leaf"))
        return self.weights[device, name]

    def op(self, device: str, call: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
        op = call.__name__
        given = [list(inputs)] if op == "cat" else inputs
        self.ran(op, device, self.observe(device, OVERLOADS.get(op, op), lambda: call(*given), inputs))

    def observe(
        self, device: str, overload: str, call: Callable[[], torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> Kernel:
        kernels: list[tuple[str, tuple[str, ...], torch.dtype | None]] = []
        casts = 0

        def record(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal casts
            dtypes = [name_of(x.dtype) for x in torch.utils._pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
            name = str(func).removeprefix("aten.").removesuffix(".default")
            kernels.append((name, tuple(dtypes), kwargs.get("dtype")))
            out = func(*args, **kwargs)
            casts += func in (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype) and out.dtype != args[0].dtype
            return out

        try:
            with AutoDispatchBelowAutograd(), Recorder(record):
                result = name_of(call().dtype)
        except RuntimeError as error:
            result = repr(error)
        kernel = next((kernel for kernel in kernels if kernel[0] == overload), None)
        if kernel is None:
            return Kernel(None, 0, None, result)
        return Kernel(kernel[1], casts, name_of(kernel[2]) if kernel[2] else None, result)


EXAMPLES = 30
NIGHTLY = 1500


def second(device: Device) -> Device:
    """Return a device of another type to use beside one in its programs: the CPU, or for the CPU a virtual one."""
    return Cpu() if device.type != "cpu" else next(d for d in DEVICES if d.type == "xpu")


def defined(text: str) -> Callable[[Side], None]:
    """Return the function that a program's text defines."""
    names: dict[str, Any] = {"torch": torch, "closing": closing, "PlannedError": PlannedError}
    exec(compile(text, "<program>", "exec"), names)
    program: Callable[[Side], None] = names["program"]
    return program


class RegionExplorer:
    """Runs programs on a device and a second one, and compares what is seen with the model.

    `compared`: how many states, dtypes and casts were compared so far.
    """

    def __init__(self, device: Device, search: Search = Search()) -> None:  # noqa: B008  # frozen
        self.devices = (device, second(device))
        self.search = search
        self.compared = 0

    def promised(self, text: str) -> "Model":
        """Return the model after it ran a program."""
        model = Model(self.devices)
        model.run(defined(text))
        return model

    def seen(self, text: str) -> list[Seen]:
        """Run a program on the devices and return what was seen. It starts from a fresh state, and leaves one."""
        defaults = {device.type: device.default_amp for device in self.devices}
        isolation.reset(defaults)
        try:
            return OnDevices(self.devices).run(defined(text))
        finally:
            isolation.reset(defaults)

    def difference(self, text: str) -> str | None:
        """Describe how torch differs from the model on a program in a sentence, or return None."""
        return self._difference(text, self.promised(text))

    def _difference(self, text: str, model: "Model") -> str | None:
        self.compared += len(model.seen)
        try:
            got = self.seen(text)
        except Unsupported:
            raise
        except Exception as error:  # only torch's own: the exceptions of programs are seen
            return f"running the program raised {one_line(error)}; expected it to run"
        return compare(got, model.seen)

    def explore(self, draw: Callable[[Sequence[str]], Texts]) -> tuple[str, str] | None:
        """Return the difference on the smallest random program that has one, and that program; None without one.

        Programs that meet a known deviation of PyTorch are left out, and those with an op that a device has no kernel
        for. Raises Unsupported where each program has one.
        """
        without: list[Unsupported] = []

        def difference(text: str) -> str | None:
            model = self.promised(text)
            assume(not model.known_bugs)
            try:
                return self._difference(text, model)
            except Unsupported as lacking:
                without.append(lacking)
                reject()

        drawn = draw([device.type for device in self.devices])
        try:
            return self.search.first_difference(difference, drawn, examples=EXAMPLES, nightly=NIGHTLY)
        except Unsatisfiable:
            if without:
                raise without[0] from None
            raise

    def script(self, text: str) -> str:
        """Return a program in plain torch, or a comment where plain torch does not see the kernels of a device.

        It prints a line for each observation: `ok`, or `FAIL` with what was got and expected.
        """
        if not self.devices[0].observes_composite_ops:
            return f"# A dispatch mode does not see the kernels of {self.devices[0].name}: run it with the pytest line."
        virtual = [device for device in self.devices if not device.has_values]
        defaults = ", ".join(f"{name!r}: {dtype}" for name, dtype in Model(self.devices).defaults.items())
        wanted = "\n".join(f"    {seen!r}," for seen in self.promised(text).seen)
        side = f"side = Torch({{{defaults}}}{', fake.__enter__' if virtual else ''})"
        needed: list[Needed] = [Torch, PlannedError, closing, zip_longest]
        blocks = [text, f"WANTED = [\n{wanted}\n]\n{side}\n{_COMPARED}"]
        return written(virtual[0] if virtual else self.devices[0], (), needed, blocks)


_COMPARED = """\
for got, want in zip_longest(side.run(program), WANTED, fillvalue=(0, "the end", None)):
    same = "ok  " if got == want else "FAIL"
    print(same, f"line {got[0]}: {got[1]} | got", got[2], "| expected", want[2] if got[:2] == want[:2] else want)"""


def _defaults(devices: Sequence[Device]) -> dict[str, torch.dtype]:
    return {device.type: DTYPES[device.default_amp] for device in devices}


class OnDevices(Torch):
    """Does what a program says on devices of different types, seen in the way of each."""

    def __init__(self, devices: Sequence[Device]) -> None:
        super().__init__(_defaults(devices))
        self.devices = {device.type: device for device in devices}

    def region(self, device: str, dtype: torch.dtype | None, enabled: bool, cache_enabled: bool | None) -> RegionLike:
        name = None if dtype is None else name_of(dtype)
        return self.devices[device].autocast(name, enabled=enabled, cache_enabled=cache_enabled)

    def new(self, device: str, dtype: torch.dtype) -> torch.Tensor:
        with self.devices[device].activate():
            return super().new(device, dtype)

    def observe(
        self, device: str, overload: str, call: Callable[[], torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> Kernel:
        own = self.devices[device]
        with own.activate():
            found = own.observe(call, {*own.policies(), overload}, inputs)
        if found.error is not None and lacks_kernel(found.error):
            raise Unsupported(one_line(found.error))
        kernel = found.of(overload)
        result = name_of(found.outputs[0].dtype) if found.error is None else one_line(found.error)
        if kernel is None:
            return Kernel(None, 0, None, result)
        return Kernel(tuple(leaf.got for leaf in kernel.leaves), len(found.casts), kernel.dtype_kwarg, result)


class Model(Side):
    """Says what a program must see, in the methods that `Torch` has.

    `known_bugs`: the known deviations of PyTorch that the program met, in words; each has its own scenario.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        super().__init__(_defaults(devices))
        self.policies = {device.type: device.policies() for device in devices}
        self.process = spec.Process(
            {device.type: device.default_amp for device in devices},
            # A region of CUDA asks the driver, and may have any dtype.
            {device.type: None if device.type == "cuda" else device.amp_dtypes for device in devices},
        )
        self.thread = self.process.thread()
        self.inference = False
        self.known_bugs: set[str] = set()

    def state(self, device: str) -> tuple[bool, str, bool, int]:
        enabled, dtype, cache_enabled, depth = astuple(self.thread.state(device))
        return enabled, dtype, cache_enabled, depth

    def autocast(
        self, device: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> LookedAt:
        name = None if dtype is None else name_of(dtype)
        region = self.thread.construct(device, name, enabled=enabled, cache_enabled=cache_enabled)
        return LookedAt(_ModelRegion(self, region), self.look)

    def no_grad(self) -> nullcontext[None]:
        return nullcontext()

    @contextmanager
    def inference_mode(self) -> Iterator[None]:
        outer, self.inference = self.inference, True
        before = [self.state(device)[0] for device in self.defaults]
        try:
            yield
        finally:
            self.inference = outer
            if before != [self.state(device)[0] for device in self.defaults]:
                self.known_bugs.add("enabled set in inference mode")

    def set_enabled(self, device: str, enabled: bool) -> None:
        self.thread.set_enabled(device, enabled)
        self.look("after enabled was set")

    def set_dtype(self, device: str, dtype: torch.dtype) -> None:
        self.thread.set_dtype(device, name_of(dtype))
        self.look("after dtype was set")

    def set_cache_enabled(self, enabled: bool) -> None:
        self.thread.set_cache_enabled(enabled)
        self.look("after cache_enabled was set")

    def clear_cache(self) -> None:
        self.thread.clear_cache()

    def in_thread(self, body: Body) -> None:
        outer = self.thread, self.inference
        self.thread, self.inference = self.process.thread(), False
        try:
            body()
        finally:
            self.thread, self.inference = outer
            self.look("after the thread")

    def new(self, device: str, dtype: torch.dtype) -> spec.Tensor:
        return spec.Tensor(name_of(dtype))

    def last(self, device: str) -> spec.Tensor:
        return spec.Tensor(self.results.get(device, "fp32"))

    def weight(self, device: str, name: str) -> spec.Tensor:
        dtype = name_of(self.defaults[device]) if name.startswith("low") else "fp32"
        return spec.Tensor(dtype, name=f"{device} {name}", requires_grad=name.startswith("leaf"))

    def op(self, device: str, call: Callable[..., torch.Tensor], *inputs: spec.Tensor) -> None:
        op = call.__name__
        overload = OVERLOADS.get(op, op)
        policy = self.policies[device].get(overload, "fallthrough")
        self._note_known_bugs(device, policy, inputs)
        outcome = self.thread.op(device, policy, overload, inputs, inference=self.inference)
        expected = outcome.expectation
        if expected.error:
            self.ran(op, device, Kernel(None, 0, None, "refused under autocast"))
            return
        result = expected.dtype_kwarg or widest([dtype for dtype in expected.leaves if is_floating(dtype)])
        self.ran(op, device, Kernel(tuple(expected.leaves), outcome.casts, expected.dtype_kwarg, result))

    def _note_known_bugs(self, device: str, policy: str, given: Sequence[spec.Tensor]) -> None:
        now = self.thread.state(device)
        if not now.enabled:
            return
        if policy == "promote" and any(tensor.dtype in LOW and tensor.dtype != now.dtype for tensor in given):
            self.known_bugs.add("promote with the other lower precision")
        if policy == "downcast" and now.cache_enabled and not self.inference:
            for tensor in given:
                other = any(name == tensor.name and dtype != now.dtype for name, dtype in self.process.cache)
                if tensor.is_weight and other:
                    self.known_bugs.add("one weight in two lower precisions")


class _ModelRegion(ContextDecorator):
    def __init__(self, model: Model, region: spec.Region) -> None:
        self.model, self.region = model, region

    def __enter__(self) -> None:
        if self.region.saved:
            self.model.known_bugs.add("one region object inside itself")
        self.model.thread.enter(self.region)

    def __exit__(self, *raised: object) -> None:
        self.model.thread.exit(self.region)


def compare(got: Sequence[Seen], want: Sequence[Seen]) -> str | None:
    """Return the first difference between what two sides have seen, in a sentence, or None."""
    for (line, what, value), (line_wanted, what_wanted, wanted) in zip(got, want, strict=False):
        if (line, what) != (line_wanted, what_wanted):
            return f"line {line}: {what} is {shown(value)}; expected to see {what_wanted} at line {line_wanted}"
        if value != wanted:
            return f"line {line}: {what} is {shown(value)}; expected {shown(wanted)}"
    if len(got) < len(want):
        line, what, value = want[len(got)]
        return f"the program ended early; expected {what} {shown(value)} at line {line}"
    if len(got) > len(want):
        line, what, value = got[len(want)]
        return f"line {line}: {what} is {shown(value)}; expected the program to have ended"
    return None


def shown(value: object) -> str:
    """Return a value that a program saw, in words."""
    match value:
        case (bool() as enabled, str() as dtype, bool() as cache_enabled, int() as depth):
            cache = "on" if cache_enabled else "off"
            return f"{'on' if enabled else 'off'} in {dtype} with the cache {cache}, depth {depth}"
        case tuple():
            return ", ".join(map(str, value))
    return str(value)
