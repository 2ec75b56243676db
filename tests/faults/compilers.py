"""Compilers that lose regions, freeze what they saw first, leak state, or compute in other dtypes than eager mode.

Each mutant changes what `torch.compile`, `torch.jit.script`, `torch.jit.trace` or `torch.export` hands out, or how a
compiled program enters its regions, so eager mode stays right.
"""

import inspect
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import _meta_registrations
from torch._C import DispatchKey
from torch._functorch._aot_autograd import collect_metadata_analysis

# Importing these two defines their operators.
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental import proxy_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ampcheck.compilers import kinds
from ampcheck.observe.recorder import map_tensors, tensors
from ampcheck.tools.lint import cases
from ampcheck.tools.lint.rules import RULES
from tests.faults.gradients import changed, doubled
from tests.faults.kernels import Body, in_low, kernel
from tests.faults.mutant import JAX, Inject, both, giving, mutants, on_error, put, wrap
from tests.faults.state import DTYPE, IS, SET, SET_CACHE, SET_DTYPE, vaguely

Function = Callable[..., Any]
Make = Callable[[Function, Function], Function]
"""Makes a wrong program of a right one and of the function it was compiled from."""

_COMPILE = torch.compile
_ENTER, _EXIT = torch.amp._enter_autocast, torch.amp._exit_autocast


def handed_out(make: Make, compiler: str = "compile") -> Inject:
    """Change the programs that a compiler returns: compile, script, trace or export."""

    def compiled(own: Function, function: Function | None = None, *args: Any, **options: Any) -> Any:
        if function is None:  # a decorator with options
            return lambda decorated: compiled(own, decorated, **options)
        return make(own(function, *args, **options), function)

    if compiler == "export":
        return wrap(torch.export.ExportedProgram, module=lambda own, self: make(own(self), self))
    return wrap(torch if compiler == "compile" else torch.jit, **{compiler: compiled})


def calling(call: Callable[..., Any]) -> Make:
    """Call `call(program, function, args)` in place of the program."""

    def make(program: Function, function: Function) -> Function:
        return lambda *args, **kwargs: call(partial(program, **kwargs), function, args)

    return make


def remembering(call: Callable[..., Any]) -> Make:
    """Call `call(program, function, args, memory)`, whose memory is a list of each program."""

    def make(program: Function, function: Function) -> Function:
        memory: list[Any] = []
        return lambda *args, **kwargs: call(partial(program, **kwargs), partial(function, **kwargs), args, memory)

    return make


def results(change: Callable[[torch.Tensor], torch.Tensor]) -> Make:
    """Change every floating result."""

    def of_one(x: Any) -> Any:
        return change(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    return calling(lambda program, _, args: map_tensors(program(*args), of_one))


def afterwards(act: Callable[[], object]) -> Make:
    return calling(lambda program, _, args: (program(*args), act())[0])


def failing(act: Callable[[], object]) -> Make:
    """Act where a program raises."""
    return calling(lambda program, _, args: on_error(act)(program, *args))


def entering(enter: Function) -> Inject:
    """Enter the regions of a captured program by `enter`, which returns a context manager or None."""

    def leave(mode: Any = None) -> None:
        if mode is not None:
            _EXIT(mode)

    return both(*(put(m, _enter_autocast=enter, _exit_autocast=leave) for m in (torch.amp, torch.amp.autocast_mode)))


# ---- programs


def state() -> tuple[bool, torch.dtype]:
    return IS("cpu"), DTYPE("cpu")


def in_state(found: tuple[bool, torch.dtype]) -> AbstractContextManager[object]:
    return torch.autocast("cpu", enabled=found[0], dtype=found[1])


def frozen(_: Function, function: Function, args: Any, memory: list[Any]) -> Any:
    """Let the first call's autocast state serve every later one, on every thread."""
    memory.append(state())
    with in_state(memory[0]):
        return function(*args)


def frozen_result(program: Function, _: Function, args: Any, memory: list[Any]) -> Any:
    """Let a call's result serve every later one with the same inputs."""
    key = tuple(map(id, args))
    found = next((out for known, out in memory if known == key), None)
    if found is None:
        found = program(*args)
        memory.append((key, found))
    return found


def frozen_dtypes(program: Function, _: Function, args: Any, memory: list[Any]) -> Any:
    """Give results the dtypes that the first call's had."""
    out = program(*args)
    memory.extend(x.dtype for x in tensors(out) if not memory)
    return map_tensors(out, lambda x: x.to(memory[0]))


def float32_where(later: Callable[[Any, Any], bool]) -> Make:
    """Give float32 where `later(arguments of the first call, arguments)` after the first call."""

    def call(program: Function, _: Function, args: Any, memory: list[Any]) -> Any:
        memory.append(args)
        out = program(*args)
        return map_tensors(out, lambda x: x.float()) if memory[1:] and later(memory[0], args) else out

    return remembering(call)


def eager_in_threads(program: Function, function: Function) -> Function:
    """Let the state of the thread that compiled serve other threads."""
    home, found = threading.get_ident(), [state()]

    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == home:
            found[0] = state()
            return program(*args, **kwargs)
        with in_state(found[0]):
            return function(*args, **kwargs)

    return call


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


def refusing_mixed(program: Function, _: Function, args: Any) -> Any:
    if len({t.dtype for t in tensors(args)}) > 1:
        raise RuntimeError("expected a single dtype in torch.cat")
    return program(*args)


def swallowed(program: Function, _: Function, args: Any) -> Any:
    try:
        return program(*args)
    except (RuntimeError, IndexError):
        return args[0]


def dropped(*args: Any) -> None:
    """Enter no region."""


def in_half(device: str, dtype: Any = None, enabled: bool = True, cache: Any = None) -> Any:
    return _ENTER(device, torch.float16, enabled, cache)


@contextmanager
def no_script_pass(device: str) -> Iterator[None]:
    """Switch TorchScript's autocast pass off: it ignores regions."""
    before = torch._C._jit_set_autocast_mode(False)
    try:
        yield
    finally:
        torch._C._jit_set_autocast_mode(before)


def leave_on() -> None:
    SET("cpu", True)


def without_metadata(own: Any, *args: Any, **options: Any) -> Any:
    """Know nothing of what the node that enters a region gives."""
    exported = own(*args, **options)
    for node in exported.graph.nodes:
        if "autocast" in str(node.target):
            node.meta.pop("val", None)
    return exported


# ---- tensors without values


def of_some(op: str, kind: Callable[[torch.Tensor], bool], wrong: Body) -> Inject:
    """Make the autocast kernel of an op wrong for some tensors."""
    return kernel(op, lambda call: wrong(call) if any(map(kind, call.tensors())) else call.registered())


def fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def traced(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FunctionalTensor)


@contextmanager
def of_two_dtypes(device: str) -> Iterator[None]:
    """Let fake products of two dtypes be, as https://github.com/pytorch/pytorch/issues/172183 says they were."""
    takes = wrap(
        _meta_registrations, common_meta_baddbmm_bmm=lambda own, one, other, *rest: own(one, other.to(one.dtype), *rest)
    )
    with takes(device):
        yield
    FakeTensorMode.cache_clear()  # it keeps what the products gave


class _Cast(TorchFunctionMode):
    """Casts meta tensors in a region of the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        metas = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.is_meta]
        if metas and IS("cpu"):
            with torch._C.DisableTorchFunction():
                args = tree_map(lambda x: x.to(DTYPE("cpu")) if any(x is meta for meta in metas) else x, args)
        return func(*args, **(kwargs or {}))


# ---- higher-order operators


def of_operator(op: Any, key: DispatchKey, wrong: Callable[..., Any]) -> Inject:
    """Replace a kernel of a higher-order operator by `wrong(own, ...)`."""

    @contextmanager
    def inject(device: str) -> Iterator[None]:
        right = op.py_kernels[key]
        op.py_kernels[key] = partial(wrong, right)
        op._dispatch_cache.clear()
        try:
            yield
        finally:
            op.py_kernels[key] = right
            op._dispatch_cache.clear()

    return inject


# ---- the linter for scripts, and compilers that a random program shows wrong


def reports(change: Callable[[list[Any]], list[Any]]) -> Inject:
    """Change what the linter reports."""
    return wrap(cases, lint_source=giving(change))


WITHOUT_A_CASE = {"device-not-constant", "entered-twice", "frozen", "trace-under-autocast"}
"""The rules of the linter for which rule `limits` has no case."""


def without(rule: str) -> Callable[[list[Any]], list[Any]]:
    return lambda found: [one for one in found if one.rule != rule]


def compiler(change: Callable[[Function], Function]) -> Inject:
    """Make the compiler of a change of functions: `traced`, and on jax `jaxjit`."""

    def make(function: Function, inputs: Sequence[Any]) -> kinds.Compiled:
        return kinds.Compiled(change(function))

    return lambda device: patch.dict(kinds.COMPILERS, {"jaxjit" if device == JAX else "traced": kinds.Compiler(make)})


def steeper(result: torch.Tensor) -> torch.Tensor:
    """Double the gradients that a result passes back, and leave its values."""
    if result.requires_grad:
        result.register_hook(lambda gradient: gradient * 2)
    return result


_LOW, _WIDE, _DOUBLE = (
    results(partial(torch.Tensor.to, dtype=d)) for d in (torch.bfloat16, torch.float32, torch.float64)
)
MUTANTS = mutants(
    {
        "jit/downcast": {
            "jit-region-dropped": entering(dropped),
            "jit-region-dropped-by-script": no_script_pass,
            "jit-trace-in-float32": handed_out(_WIDE, "trace"),
            "jit-second-call-in-float32": handed_out(float32_where(lambda first, args: True)),
            "jit-gradient-twice": handed_out(results(lambda x: changed(x, doubled) if x.requires_grad else x)),
            "jit-gradient-lost": handed_out(results(torch.Tensor.detach)),
            "jit-state-left-on": handed_out(afterwards(leave_on)),
        },
        "jit/upcast": {"jit-upcast-lost": handed_out(_LOW), "jit-upcast-after-rounding": handed_out(results(rounded))},
        "jit/banned virtual:cuda": {"jit-refusal-swallowed": handed_out(calling(swallowed))},
        "jit/promote": {"jit-mixed-refused-by-script": handed_out(calling(refusing_mixed), "script")},
        "jit/context": {
            "jit-kept-across-dtypes": handed_out(remembering(frozen_dtypes)),
            "jit-result-widened": handed_out(_WIDE),
            "jit-result-in-float64": handed_out(_DOUBLE),
            "jit-result-in-float64-by-export": handed_out(_DOUBLE, "export"),
            "jit-nothing-frozen": put(torch.jit, freeze=lambda module: module),
            "jit-state-left-on-by-script": handed_out(afterwards(leave_on), "script"),
            "jit-node-without-metadata": wrap(torch.export, export=without_metadata),
        },
        "jit/nesting": {
            "jit-script-runs-eagerly": handed_out(lambda _, function: function, "script"),
            "jit-disabled-region-on": entering(
                lambda device, dtype=None, enabled=True, cache=None: _ENTER(device, dtype, True, cache)
            ),
        },
        "jit/defaults": {"jit-always-half": entering(in_half)},
        "jit/decorator": {  # mends the known deviations
            "jit-decorator-lost": handed_out(lambda _, function: _COMPILE(inspect.unwrap(function), backend="eager"))
        },
        "jit/exceptions": {
            "jit-state-left-by-exception": handed_out(failing(leave_on)),
            "jit-exception-lost-in-capture": wrap(torch.export, export=vaguely),
        },
        "jit/cache": {
            "jit-nothing-traced": put(torch.jit, trace=lambda function, *rest, **options: function),
            "jit-result-kept": handed_out(remembering(frozen_result)),
        },
        "jit/state": {
            "jit-cache-turned-off": handed_out(lambda program, _: (SET_CACHE(False), program)[1]),
            "jit-region-on-while-compiling": put(torch._C, _DisableAutocast=nullcontext),
            "jit-state-not-compared": put(collect_metadata_analysis, _get_autocast_states=list),
        },
        "jit/programs": {
            "jit-draws-once-more": handed_out(calling(lambda program, _, args: (torch.rand(1), program(*args))[1])),
            "jit-off-by-one": handed_out(results(lambda x: x + 1)),
        },
        "jit/ambient": {
            "state-of-another-thread": handed_out(eager_in_threads),
            "trace-without-its-casts": handed_out(lambda _, function: function, "trace"),
            "graph-without-its-casts": put(proxy_tensor, make_fx=lambda function, **_: lambda *_: function),
        },
        "jit/guards": {
            "jit-no-guard-on-surroundings": handed_out(remembering(frozen)),
            "runs-eagerly": put(torch, compile=lambda function, **_: function),
        },
        "jit/failures": {
            "error-leaves-a-dtype": handed_out(failing(lambda: SET_DTYPE("cpu", torch.float16))),
            "error-not-raised": handed_out(calling(swallowed)),
            "backward-leaves-it-on": wrap(torch.Tensor, backward=on_error(leave_on)),
        },
        "jit/faketensor": {
            "fake-in-low": of_some("cat", fake, in_low),
            "fake-of-two-dtypes": of_two_dtypes,
            "meta-is-cast": lambda device: _Cast(),
            "compiled-result-doubled": of_some("mm", traced, lambda call: call.registered() * 2),
        },
        "jit/derivatives": {
            "compiled-more-casts": handed_out(results(lambda x: x.double().to(x.dtype))),
            "rules-doubled": handed_out(results(lambda x: steeper(x) if x.requires_grad else x * 2)),  # pytorch#193279
        },
        "jit/hops": {
            "operator-refuses-regions": put(  # it no longer falls through on the CPU's autocast key
                run_and_save_rng_state,
                non_fallthrough_keys=run_and_save_rng_state.non_fallthrough_keys.add(DispatchKey.AutocastCPU),
            ),
            "dropped-anew": of_operator(
                run_with_rng_state, DispatchKey.BackendSelect, lambda own, state, op, *args, **kw: op(*args, **kw)
            ),
        },
        "jit/limits": {
            **{f"lint-misses-{rule}": reports(without(rule)) for rule in RULES if rule not in WITHOUT_A_CASE},
            "jit-trace-doubled": handed_out(results(lambda x: 2 * x), "trace"),
            "another-program-runs": wrap(
                subprocess, run=lambda own, command, **options: own([command[0], "-c", "print('True ' * 3)"], **options)
            ),
        },
        "jit/parity": {
            "compiler-doubles-gradients": handed_out(lambda f, _: lambda *args: tuple(steeper(t) for t in f(*args))),
            "compiler-widens-results": compiler(lambda f: lambda *args: tuple(t.float() for t in f(*args))),
        },
    }
)
