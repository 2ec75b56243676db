"""A program as plain torch, to be pasted into a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ampcheck.devices.base import Device
from ampcheck.programs.steps import (
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
    Set,
    Step,
    Thread,
    UseWeight,
    With,
)
from ampcheck.repro import preamble
from ampcheck.torch_dtypes import DTYPES

_HELPERS = """\
from torch.utils._python_dispatch import TorchDispatchMode


class Show(TorchDispatchMode):  # prints what reaches the kernels, autocast's casts among it
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        leaves = torch.utils._pytree.tree_leaves(args)
        print("   ", func, [leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)], kwargs or "")
        return func(*args, **(kwargs or {}))


def new(device, dtype, **kwargs):
    return torch.full((2, 2), 0.5, dtype=dtype, device=device, **kwargs)


def state(where):
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    for device in DEVICES:
        print(where, device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device),
              "cache", torch.is_autocast_cache_enabled(), "depth", depth)


last = {}


def op(where, device, call, *inputs):
    print(where)
    try:
        with torch._C._AutoDispatchBelowAutograd(), Show():
            out = call(*inputs)
        last[device] = new(device, out.dtype)
    except RuntimeError as error:
        print("   ", error)"""


def render(program: Program, devices: Sequence[Device]) -> str:
    """A program as a script that prints every state, and the dtypes that reach each kernel.

    `devices`: as for `ampcheck.programs.run`.
    """
    virtual = [device for device in devices if not device.has_values]
    lines = preamble(virtual[0] if virtual else devices[0])
    if "threading" not in lines and _threads(program):
        lines.insert(0, "import threading")
    lines += [_HELPERS, "", f"DEVICES = {[device.type for device in devices]!r}"]
    weights = sorted(_weights(program))
    for device, name in weights:
        own = next(d for d in devices if d.type == device)
        dtype = DTYPES[own.default_amp if name.startswith("low") else "fp32"]
        grad = ", requires_grad=True" if name.startswith("leaf") else ""
        lines.append(f"{_variable(device, name)} = new({device!r}, {dtype}{grad})")
    return "\n".join([*lines, "", *_body(program, "", ""), 'state("at the end")'])


def _nested(step: Step) -> tuple[Program, ...]:
    match step:
        case With(_, body) | Decorated(_, body) | Catch(body) | NoGrad(body) | InferenceMode(body) | Thread(body):
            return (body,)
        case Reenter(_, body, again) | Generator(_, body, again):
            return (body, again)
    return ()


def _all(program: Program) -> Iterator[Step]:
    for step in program:
        yield step
        for body in _nested(step):
            yield from _all(body)


def _threads(program: Program) -> bool:
    return any(isinstance(step, Thread) for step in _all(program))


def _weights(program: Program) -> set[tuple[str, str]]:
    return {(step.device, step.weight) for step in _all(program) if isinstance(step, UseWeight)}


def _variable(device: str, weight: str) -> str:
    return f"{weight}_{device}"


def _region(options: Options) -> str:
    arguments = [repr(options.device)]
    if options.dtype is not None:
        arguments.append(f"dtype={DTYPES[options.dtype]}")
    if not options.enabled:
        arguments.append("enabled=False")
    if options.cache_enabled is not None:
        arguments.append(f"cache_enabled={options.cache_enabled}")
    return f"torch.autocast({', '.join(arguments)})"


def _body(program: Program, where: str, indent: str) -> list[str]:
    lines = []
    for number, step in enumerate(program, 1):
        place = f"{where}.{number}" if where else str(number)
        lines += [f"{indent}{line}" if line else "" for line in _step(step, place)]
    return lines


def _inside(head: str, program: Program, where: str) -> list[str]:
    return [head, f'    state("{where} inside")', *_body(program, where, "    ")]


def _step(step: Step, where: str) -> list[str]:
    name = where.replace(".", "_")
    after = f'state("{where} after")'
    match step:
        case With(options, body):
            return [*_inside(f"with {_region(options)}:", body, where), after]
        case Decorated(options, body, calls, around):
            called = [f"f{name}()", after] * calls
            lines = [f"@{_region(options)}", *_inside(f"def f{name}():", body, where), ""]
            if around is None:
                return [*lines, *called]
            return [*lines, f"with {_region(around)}:", *(f"    {line}" for line in called), after]
        case Reenter(options, body, again, nested):
            first, second = _inside(f"with r{name}:", body, where), _inside(f"with r{name}:", again, where)
            if nested:
                second = [f"    {line}" for line in second]
            return [f"r{name} = {_region(options)}", *first, *second, after]
        case Generator(options, body, between):
            lines = [f"def g{name}():", *(f"    {line}" for line in _inside(f"with {_region(options)}:", body, where))]
            later = _body(between, f"{where} while suspended", "    ") or ["    pass"]
            return [*lines, "        yield", "", f"for _ in g{name}():", *later, after]
        case Op(op, device, inputs):
            tensors = [
                f"last.get({device!r}, new({device!r}, torch.float32))"
                if dtype == LAST
                else f"new({device!r}, {DTYPES[dtype]})"
                for dtype in inputs
            ]
            return [f'op("{where} {op}", {device!r}, {", ".join([OPS[op].source, *tensors])})']
        case UseWeight(device, weight):
            given = f"new({device!r}, torch.float32), {_variable(device, weight)}"
            return [f'op("{where} mm with {weight}", {device!r}, torch.mm, {given})']
        case Set("cache_enabled", _, value):
            return [f"torch.set_autocast_cache_enabled({value})", after]
        case Set(what, device, value):
            return [f"torch.set_autocast_{what}({device!r}, {DTYPES[str(value)] if what == 'dtype' else value})", after]
        case ClearCache():
            return ["torch.clear_autocast_cache()"]
        case Raise():
            return ['raise ValueError("planned")']
        case Catch(body):
            return ["try:", *(_body(body, where, "    ") or ["    pass"]), "except ValueError:", "    pass", after]
        case NoGrad(body):
            return ["with torch.no_grad():", *(_body(body, where, "    ") or ["    pass"])]
        case InferenceMode(body):
            return ["with torch.inference_mode():", *(_body(body, where, "    ") or ["    pass"])]
        case Thread(body):
            inner = [f'    state("{where} in a new thread")', *_body(body, where, "    ")]
            return [
                f"def t{name}():",
                *inner,
                "",
                f"t = threading.Thread(target=t{name})",
                "t.start()",
                "t.join()",
                after,
            ]
