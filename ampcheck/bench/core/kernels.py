"""Find the kernels that a call runs, and their dtypes: observed, read in graphs, or read in a program's text."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from ampcheck.bench.torch_private import aot_autograd
from ampcheck.devices.base import Device
from ampcheck.observe.recorder import KernelCall, KernelRecorder, exists, overload, overload_name, tensors
from ampcheck.register.torch_private import OpOverload
from ampcheck.spec.casting import Leaf, is_floating
from ampcheck.spec.torch_dtypes import name_of


@dataclass(frozen=True, slots=True)
class BenchKernel:
    """One kernel, or one instruction of a program.

    `name`: an aten overload such as "sum.dim_IntList", or a StableHLO instruction such as "dot_general". `got`: the
    dtypes of its floating point arguments. `dtype_kwarg`: its `dtype=`, None without. `out`: an instruction's results.
    `given`: all its tensor arguments as they were before autocast cast them, and `received` their dtypes afterwards;
    empty where that was not seen.
    """

    name: str
    got: tuple[str, ...]
    dtype_kwarg: str | None = None
    out: tuple[str, ...] = ()
    given: tuple[Leaf, ...] = ()
    received: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        """Its name without the overload's: "sum" for "sum.dim_IntList"."""
        return self.name.rpartition("::")[2].partition(".")[0]

    @property
    def dtype(self) -> str:
        """The dtype it computes in: its arguments', or several joined by "+", or what its `dtype=` asks for."""
        return self.dtype_kwarg or "+".join(sorted(set(self.got)))

    @property
    def is_product(self) -> bool:
        """Return whether it multiplies matrices, convolves, attends or runs a recurrent layer, forward or backward."""
        return _PRODUCT.fullmatch(self.short) is not None


_PRODUCT = re.compile(
    r"_?(addmm|mm|bmm|baddbmm|addbmm|addmv|mv|dot|vdot|matmul|linear|bilinear|trilinear|einsum|chain_matmul|dot_general"
    r"|\w*conv\w*|\w*scaled_dot_product\w*|\w*rnn\w*|lstm\w*|gru\w*|mkldnn_linear)(_backward)?"
)

# What moves, makes or updates numbers and computes none of the workload's: `_foreach_` and `_amp_` are the optimizer's
# and the scaler's.
_BOOKKEEPING = re.compile(
    r"detach|clone|copy|alias|contiguous|(new_)?(empty|zeros|ones|full)(_like|_strided)?|fill|zero|lift_fresh|_to_copy"
    r"|convert_element_type|_foreach_\w+|_amp_\w+|_fused_sgd|_local_scalar_dense|getitem|_record_function\w*|split\w*"
    r"|unsafe_split\w*"
)
_CASTS = frozenset(("_to_copy", "convert_element_type", "to", "convert"))
_MOVES = re.compile(
    r"broadcast(_in_dim)?|reshape|transpose|slice|dynamic_slice|dynamic_update_slice|pad|reverse|gather|select"
    r"|bitcast_convert|optimization_barrier|custom_call|composite|while|if|case|tuple|get_tuple_element"
)
_NOTHING = frozenset(("constant", "return", "iota", "convert"))


def computing(kernels: Sequence[BenchKernel]) -> list[BenchKernel]:
    """Those of some kernels that compute with floating point numbers; all but casts where none does, as for a view."""

    def moves(kernel: BenchKernel) -> bool:
        if _MOVES.fullmatch(kernel.short) or _BOOKKEEPING.fullmatch(kernel.short.removesuffix("_")):
            return True
        returns = overload(kernel.name)._schema.returns if "::" not in kernel.name and exists(kernel.name) else ()
        alias = returns[0].alias_info if len(returns) == 1 else None
        return alias is not None and not alias.is_write  # a view

    floating = [k for k in kernels if k.got and k.short not in _CASTS]
    return [k for k in floating if not moves(k)] or floating


def observed(
    call: Callable[[], object], device: Device, region: torch.dtype | None, whole: Collection[str]
) -> list[BenchKernel]:
    """Return the kernels of a call without backward, through the device's own recorder.

    `whole`: overloads with a policy, which are seen as they are called. Raises what the call raises.
    """
    with device.autocast(name_of(region) if region else None, enabled=region is not None):
        # Entered around the recorder too, which reads there whether the parts of composite ops are cast.
        observation = device.observe(call, whole)
    if observation.error is not None:
        raise observation.error
    return [_of(kernel) for kernel in observation.kernels]


class _Watch(TorchFunctionMode):
    """Notes the autocast dtype at each call of a torch function, None outside of a region."""

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.device_type, self.seen = device_type, set[torch.dtype | None]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        enabled = torch.is_autocast_enabled(self.device_type)
        self.seen.add(torch.get_autocast_dtype(self.device_type) if enabled else None)
        return func(*args, **(kwargs or {}))


def enters(call: Callable[[], object], device_type: str, region: torch.dtype) -> bool:
    """Return whether a call makes torch calls within an autocast region of that dtype which it enters itself."""
    with torch.autocast(device_type, enabled=False), _Watch(device_type) as watch:
        call()
    return region in watch.seen


def observed_step(call: Callable[[], object], device: Device, whole: Collection[str]) -> list[BenchKernel]:
    """Return the kernels of a training step, without the update, below autograd: composite ops are taken apart."""
    recorder = KernelRecorder(device.type, whole)
    update: list[int] = []  # where an optimizer's update began and ended
    note = lambda *_: update.append(len(recorder.kernels))  # noqa: E731
    hooks = [register_optimizer_step_pre_hook(note), register_optimizer_step_post_hook(note)]
    try:
        with recorder:
            call()
    finally:
        for hook in hooks:
            hook.remove()
    places = (range(*pair) for pair in zip(update[::2], update[1::2], strict=True))
    left_out = {place for places_of_one in places for place in places_of_one}
    kernels = (_of(kernel) for place, kernel in enumerate(recorder.kernels) if place not in left_out)
    return [kernel for kernel in kernels if kernel.dtype != "fp64"]  # GradScaler inverts its scale in float64


def _of(seen: KernelCall) -> BenchKernel:
    return BenchKernel(
        seen.overload,
        tuple(leaf.got for leaf in seen.leaves if is_floating(leaf.got)),
        seen.dtype_kwarg,
        given=tuple(Leaf(leaf.given, leaf.on_device) for leaf in seen.leaves),
        received=tuple(leaf.got for leaf in seen.leaves),
    )


def compiled(make: Callable[[Any], Callable[[], object]]) -> list[BenchKernel]:
    """Return the kernels in the graphs that `torch.compile` makes of a call, forward and backward.

    `make`: gives the call compiled with a backend. It is run once, op by op.
    """
    from functorch.compile import make_boxed_func  # type: ignore[import-untyped]  # noqa: PLC0415  # takes seconds to load

    kernels: list[BenchKernel] = []

    def note(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        for node in graph.graph.nodes:
            if node.op == "call_function" and isinstance(node.target, OpOverload):
                given = tensors([n.meta["val"] for n in node.all_input_nodes if "val" in n.meta])
                got, dtype = filter(is_floating, (name_of(value.dtype) for value in given)), node.kwargs.get("dtype")
                asked = name_of(dtype) if isinstance(dtype, torch.dtype) else None
                kernels.append(BenchKernel(overload_name(node.target), tuple(got), asked))
        return make_boxed_func(graph.forward)

    make(aot_autograd(fw_compiler=note, bw_compiler=note))()
    return kernels


@dataclass(frozen=True, slots=True)
class KernelProgram:
    """A StableHLO module: its instructions, the floating point dtypes that its entry takes, and all that are in it."""

    kernels: tuple[BenchKernel, ...]
    takes: tuple[str, ...]
    dtypes: frozenset[str]


_INSTRUCTION = re.compile(r"(?:%\S+\s*=\s*)\"?(?:stablehlo|chlo)\.([a-z_0-9]+)")
_TYPE = re.compile(r"tensor<(?:[0-9?]+x)*([a-zA-Z0-9]+)[,>]")
_HLO = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16", "f8E4M3FN": "fp8e4m3", "f8E5M2": "fp8e5m2"}


def program(text: str) -> KernelProgram:
    """Read a StableHLO module as `Lowered.as_text()` prints it. Raises ValueError where there is no `@main` in it."""
    kernels: list[BenchKernel] = []
    takes: tuple[str, ...] | None = None
    for line in text.splitlines():
        if "func.func" in line and "@main" in line:
            takes = _types(line.partition("->")[0])
        elif match := _INSTRUCTION.search(line):
            if match[1] in _NOTHING:
                continue
            signature = line[line.rfind(" : ") :] if " : " in line else ""
            arguments, arrow, results = signature.partition("->")
            # Where all types are one, only that one is printed.
            out = _types(results) if arrow else _types(arguments)
            kernels.append(BenchKernel(match[1], _types(arguments), out=out))
    if takes is None:
        raise ValueError("the text is not a StableHLO module: it has no function @main")
    return KernelProgram(tuple(kernels), takes, frozenset(_types(text)))


def _types(text: str) -> tuple[str, ...]:
    return tuple(_HLO[name] for name in _TYPE.findall(text) if name in _HLO)
