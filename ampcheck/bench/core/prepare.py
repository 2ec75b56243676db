"""A workload made ready to be called in one variant: tensors, model, region, compiler."""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ampcheck.bench.core.model import OpWorkload, Precision, Spec, StepWorkload, Workload
from ampcheck.observe.recorder import tensors

FP64 = Precision("fp64", convert=torch.float64)
"""The reference for errors; run eagerly on the CPU."""


class Prepared:
    """One variant of a workload on a device.

    `call()` is what is timed, and makes `calls` of the workload: the autocast region is entered inside, as the weight
    cache would stay warm otherwise. `eager()` computes one op by op, for a recorder to see. `restore()` puts
    parameters, buffers and the process's setting of float32 products back to where they began. With compiler "jit",
    `jitted(*arguments)` is the call, and `jitted.lower(*arguments)` its program.

    Args:
        forward: what `torch.compile` compiles: all of an op's call, of a step the model.
        stepping: makes the call of a step of `forward`, or of what it was compiled to.
        model: the model of a step, whose parameters and buffers are put back.
        gradients: whether they are part of its output.
        copies: of the arguments, which calls of an op get in turns.
    """

    call: Callable[[], object]
    calls: int = 1
    jitted: Any = None

    def __init__(
        self,
        device: str,
        precision: Precision,
        compiler: str,
        arguments: Sequence[torch.Tensor],
        forward: Callable[..., Any],
        *,
        stepping: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda forward: forward,
        model: nn.Module | None = None,
        gradients: bool = False,
        copies: Sequence[tuple[torch.Tensor, ...]] = (),
    ) -> None:
        self._device, self._precision, self._forward, self._stepping = device, precision, forward, stepping
        self.arguments, self._turns = tuple(arguments), [tuple(arguments), *copies]
        tensors_of_model = () if model is None else (*model.parameters(), *model.buffers())
        self._begun = {tensor: tensor.detach().clone() for tensor in tensors_of_model}
        learned = model.parameters() if model is not None and gradients else ()
        self._learned = [parameter for parameter in learned if parameter.requires_grad]
        self.restore()
        function = stepping(forward)
        self.eager = self._given(function)
        if compiler == "eager":
            self.call = self.eager
        elif compiler == "graph":
            self.call, self.calls = graphed(self.eager), _CALLS
        elif compiler == "compile":
            self.call = self.compiled_with(_backend(device))
        else:
            from ampcheck.jax_device import jit  # noqa: PLC0415  # jax only where it is measured

            self.jitted = jit(function, fullgraph=True)
            self.call = self._given(self.jitted)

    def compiled_with(self, backend: Any) -> Callable[[], object]:
        """Return the same call through `torch.compile` with that backend."""
        return self._given(self._stepping(torch.compile(self._forward, backend=backend, dynamic=False)))

    def output(self, seed: int = 0) -> torch.Tensor:
        """Return the result of a call from the initial state, as one float64 vector on the CPU.

        Of an op or of inference its floating point outputs; of a training step its loss and every gradient (zeros where
        a parameter has none), unscaled. `seed`: for random numbers that it draws.
        """
        self.restore()
        torch.manual_seed(seed)
        found = list(tensors(self.call()))
        found += [torch.zeros_like(p) if p.grad is None else p.grad for p in self._learned]
        parts = [t.detach().cpu().double().reshape(-1) for t in found if t.is_floating_point()]
        self.restore()
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)

    def restore(self) -> None:
        """Put parameters, buffers and the setting of float32 products back."""
        if self._device == "cuda":  # outside of the clock, and never by the older names beside the new
            setting = "ieee" if self._precision.matmul == "highest" else "tf32"
            cudnn: Any = torch.backends.cudnn  # mypy takes it for a plain module
            for backend in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn):
                backend.fp32_precision = setting
        with torch.no_grad():
            for tensor, value in self._begun.items():
                tensor.copy_(value)

    def _given(self, run: Callable[..., Any]) -> Callable[[], object]:
        """Return a call of a function of the arguments."""
        setting, arguments = _matmul(self._device, self._precision.matmul), self.arguments
        if len(self._turns) > 1:
            turn = itertools.cycle(self._turns)
            return lambda: run(*next(turn))

        def call() -> Any:
            with setting():
                return run(*arguments)

        return call if setting is not contextlib.nullcontext else lambda: run(*arguments)


def training(
    model: nn.Module,
    rate: float,
    scaler: torch.amp.GradScaler,
    region: Callable[[], AbstractContextManager[Any]],
    loss: Callable[..., torch.Tensor],
    taken: int,
) -> Callable[[Callable[..., Any]], Callable[..., torch.Tensor]]:
    """Return a function that makes the training step of a forward: loss in the region, backward, update by SGD.

    `taken`: how many of the inputs the model gets; the loss gets its output and the others.
    """
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate)

    def stepping(forward: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        def step(*inputs: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)  # else the accumulation would be timed
            with region():
                value = loss(forward(*inputs[:taken]), *inputs[taken:])
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
            return value.detach()

        return step

    return stepping


def prepare(workload: Workload, precision: Precision, device: str, compiler: str) -> Prepared:
    """Make a workload ready in one variant; nothing is called yet.

    Args:
        device: the PyTorch device type.
        compiler: one of `COMPILERS`.
    """
    if not isinstance(workload, (OpWorkload, StepWorkload)):
        raise TypeError(f"{workload.name} measures overhead: its variants are made by `make`")
    module, region = make_module(workload, device, precision.convert), region_of(device, precision)
    arguments = tuple(make_inputs(workload, device, precision.convert))
    if isinstance(workload, OpWorkload):
        modules, called = () if module is None else (module,), workload.call

        def run(*inputs: torch.Tensor) -> Any:
            with torch.no_grad(), region():
                return called(*modules, *inputs)

        turns = copies(arguments) if device == "cuda" else ()
        return Prepared(device, precision, compiler, arguments, run, copies=turns)
    assert module is not None  # a step has a model
    scaled = workload.scaler or workload.overflows or precision.region is torch.float16
    # A scale of infinity makes every gradient infinite, and half of it still does.
    start = float("inf") if workload.overflows else 2.0**10
    scaler = torch.amp.GradScaler(device, init_scale=start, enabled=scaled)
    stepping = training(module, workload.rate, scaler, region, workload.loss, len(arguments) - 1)
    gradients = not workload.overflows
    return Prepared(
        device, precision, compiler, arguments, module, stepping=stepping, model=module, gradients=gradients
    )


def reference(workload: Workload, device: str = "cpu") -> torch.Tensor:
    """Return the workload's result in float64, as `Prepared.output` gives it.

    `device`: where it is computed; a GPU needs a second for what takes a core of the CPU a minute and a half.
    """
    return prepare(workload, FP64, device, "eager").output()


def copies(arguments: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """Return copies of what a call gets on CUDA, so many that no call in turns finds its own in the L2 cache.

    There are as many as a graph has calls at most: what is smaller is bound by its launch.
    """
    size = sum(tensor.nbytes for tensor in arguments)
    held = 2 * torch.cuda.get_device_properties().L2_cache_size
    count = min(math.ceil(held / size), _CALLS) - 1 if size else 0
    return [tuple(tensor.clone() for tensor in arguments) for _ in range(count)]


def _backend(device: str) -> Any:
    if device != "jax":
        return "inductor"
    # By its name torch finds it only where ampcheck is installed.
    from ampcheck.jax_device.compile import backend  # noqa: PLC0415  # jax only where it is measured

    return backend


def region_of(device: str, precision: Precision) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function that gives the precision's autocast region, or none."""
    if precision.region is None:
        return contextlib.nullcontext
    return functools.partial(torch.autocast, device, dtype=precision.region)


def _matmul(device: str, setting: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return a context that sets how float32 products may be shortened, for backends that do so by call."""
    if device == "jax":
        import jax  # noqa: PLC0415  # jax only where it is measured

        if jax.default_backend() != "cpu":
            return lambda: jax.default_matmul_precision("highest" if setting == "highest" else "default")
    return contextlib.nullcontext


_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def make_inputs(
    workload: OpWorkload | StepWorkload, device: str, convert: torch.dtype | None = None
) -> list[torch.Tensor]:
    """Return the tensors of a workload on a device, in the order of its specs.

    `convert`: what float32 specs become. float64 is for a reference, so specs of lower precision become that as well,
    with the values that they have after rounding. On the device "meta" the tensors have no values. Raises ValueError
    for channels-last memory of a tensor that has neither four nor five dimensions.
    """
    generator = torch.Generator().manual_seed(0)
    return [_tensor(spec, device, convert, generator) for spec in workload.inputs]


def make_module(
    workload: OpWorkload | StepWorkload, device: str, convert: torch.dtype | None = None
) -> nn.Module | None:
    """Return the module of a workload on a device, its parameters drawn on the CPU from seed 0; None for one without.

    `convert`: what its floating point parameters and buffers become. On the device "meta" they have no values.
    """
    make = workload.model if isinstance(workload, StepWorkload) else workload.module
    if make is None:
        return None
    if device == "meta":
        with torch.device("meta"):
            return make().to(convert)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        module = make()
    return module.to(device, convert)


def _tensor(spec: Spec, device: str, convert: torch.dtype | None, generator: torch.Generator) -> torch.Tensor:
    if spec.channels_last and len(spec.shape) not in _FORMATS:
        raise ValueError(f"a tensor of shape {spec.shape} has no channels-last memory format")
    if device == "meta":
        tensor = torch.empty(spec.shape, dtype=spec.dtype, device=device)
    elif spec.high is not None:
        tensor = torch.randint(spec.high, spec.shape, generator=generator).to(spec.dtype)
    else:
        tensor = torch.randn(spec.shape, generator=generator).to(spec.dtype)
    is_reference = convert is torch.float64 and spec.dtype.is_floating_point
    if convert is not None and (spec.dtype is torch.float32 or is_reference):
        tensor = tensor.to(convert)
    tensor = tensor.to(device)
    # On the device and not before, as a move to it may change the memory format.
    return tensor.contiguous(memory_format=_FORMATS[len(spec.shape)]) if spec.channels_last else tensor


# ---- what a call must compute and move at least
#
# Only products (matrix products, convolutions, attention) are counted as operations: a multiplication and an addition
# for each pair of numbers multiplied, forward and backward. A workload runs on meta tensors to be counted, which takes
# milliseconds whatever its size.


@functools.cache
def flops(workload: Workload) -> float:
    """Return the floating point operations of one call, 0 where nobody counts them.

    Attention is taken apart into its products, of which `OpWorkload.needed` says how many a kernel can leave out.
    """
    if not isinstance(workload, (OpWorkload, StepWorkload)) or not workload.inputs:
        return 0
    inputs, module = make_inputs(workload, "meta"), make_module(workload, "meta")
    modules = [] if module is None else [module]
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        if isinstance(workload, StepWorkload):
            workload.loss(modules[0](*inputs[:-1]), inputs[-1]).backward()
            return float(counter.get_total_flops())
        with torch.no_grad():
            workload.call(*modules, *inputs)
    return float(counter.get_total_flops() * workload.needed)


@functools.cache
def moved(workload: Workload, element: int) -> float:
    """Return the bytes that one call must read and write, 0 where nobody counts them.

    These are an op's inputs and parameters read once and its output written once, which is what a fused kernel with an
    endless cache would move; of a step the parameters read and written once, and the data.

    Args:
        element: bytes of an element of what is float32 by default: 4, or 2 for a lower precision.
    """
    if not isinstance(workload, (OpWorkload, StepWorkload)) or not workload.inputs:
        return 0
    convert = None if element == 4 else torch.bfloat16
    inputs, module = make_inputs(workload, "meta", convert), make_module(workload, "meta", convert)
    modules = [] if module is None else [module]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    if isinstance(workload, StepWorkload):
        there = [*(tensor for tensor in inputs if tensor.is_floating_point()), *parameters, *parameters]
    elif workload.view:
        return 0
    else:
        with torch.no_grad():
            there = [*inputs, *parameters, workload.call(*modules, *inputs)]
    return sum(tensor.nbytes for tensor in there)


# ---- CUDA graphs: what a short op takes once launching it costs nothing


LIMIT = 50e-6
"""Seconds. An op that keeps the GPU longer is not bound by its launch, and a graph of it shows nothing new."""

_CALLS = 50
"""The calls in a graph: launching one costs microseconds, too."""


class TooLong(RuntimeError):
    """An op whose launch is not what it waits for."""


def graphed(call: Callable[[], object]) -> Callable[[], object]:
    """Return the kernels of `_CALLS` calls as a CUDA graph, captured at the first one; it returns the same tensors.

    Raises TooLong at the first call where the kernels of a call take `LIMIT` or longer, RuntimeError where CUDA cannot
    capture it.
    """
    held: list[tuple[Any, Any]] = []

    def replay() -> Any:
        if not held:
            held.append(_capture(call))
        graph, outputs = held[0]
        graph.replay()
        return outputs

    return replay


def _capture(call: Callable[[], object]) -> tuple[Any, Any]:
    """Return a graph of the calls and the last one's outputs. What a first call makes, as a handle, must exist."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph, outputs = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            outputs = None  # the memory of one result serves the next
            outputs = call()
    graph.replay()  # the first replay brings it to the GPU
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    seconds = begin.elapsed_time(end) / 1e3 / _CALLS
    if seconds >= LIMIT:
        raise TooLong(f"its kernels take {seconds * 1e6:.0f} us; graphs are for calls below {LIMIT * 1e6:.0f} us")
    return graph, outputs
