"""A program as plain torch, to be pasted into a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple

from ampcheck.devices.base import Device
from ampcheck.programs.regions.execute import facts
from ampcheck.programs.regions.model import model
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
    Set,
    Step,
    Thread,
    UseWeight,
    With,
)
from ampcheck.reproduce import preamble, snippets
from ampcheck.spec.state import State
from ampcheck.spec.torch_dtypes import DTYPES

_HELPERS = """\
from torch.utils._python_dispatch import TorchDispatchMode


class Show(TorchDispatchMode):  # notes what reaches the kernels, autocast's casts among it
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        dtypes = [name_of(x.dtype) for x in torch.utils._pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
        self.ran.append((str(func).removeprefix("aten.").removesuffix(".default"), tuple(dtypes), kwargs or {}))
        out = func(*args, **(kwargs or {}))
        casts = func in (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype)
        self.casts += casts and out.dtype != args[0].dtype
        return out


def new(device, dtype, **kwargs):
    return torch.full((2, 2), 0.5, dtype=dtype, device=device, **kwargs)


def seen(where, what, got):
    left = WANTED.get((where, what), [])
    want = left.pop(0) if left else "nothing of the kind"
    print("ok  " if got == want else "FAIL", f"step {where}: {what} | got", got, "| expected", want)


def state(where, what):
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    for device in DEVICES:
        enabled, dtype = torch.is_autocast_enabled(device), name_of(torch.get_autocast_dtype(device))
        seen(where, f"state of {device} {what}", (enabled, dtype, torch.is_autocast_cache_enabled(), depth))


last = {}


def op(where, name, overload, device, call, *inputs):
    show, error = Show(), None
    show.ran, show.casts = [], 0
    try:
        with torch._C._AutoDispatchBelowAutograd(), show:
            out = call(*inputs)
    except RuntimeError as raised:
        error = raised
    kernel = next((kernel for kernel in show.ran if kernel[0] == overload), None)
    if kernel is None:
        seen(where, f"{name} on {device}", "refused" if "autocast" in str(error) else repr(error))
        return
    seen(where, f"dtypes in the kernel of {name} on {device}", kernel[1])
    seen(where, f"casts made for {name} on {device}", show.casts)
    if kernel[2].get("dtype"):
        seen(where, f"dtype= of {name} on {device}", name_of(kernel[2]["dtype"]))
    if name in STRICT and len(set(kernel[1])) > 1:  # an implementation may refuse them
        return
    if error is None:
        last[device] = new(device, out.dtype)
    seen(where, f"result of {name} on {device}", repr(error) if error else name_of(out.dtype))"""


_IN_THREAD = """\
def in_thread(call):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()"""


def render(program: Program, devices: Sequence[Device]) -> str:
    """A program as a script: prints a line for each state, kernel, cast and result that the model predicts.

    `ok`, or `FAIL` with what was got and expected. `devices`: as for `ampcheck.programs.regions.run`.
    """
    virtual = [device for device in devices if not device.has_values]
    lines = preamble(virtual[0] if virtual else devices[0])
    if any(isinstance(step, Thread) for step in _all(program)):
        lines.insert(0, "from concurrent.futures import ThreadPoolExecutor")
        lines += ["", _IN_THREAD.replace("(1)", "(1, initializer=fake.__enter__)") if virtual else _IN_THREAD]
    lines += ["", snippets.NAME_OF, "", _HELPERS, "", f"DEVICES = {[device.type for device in devices]!r}"]
    lines += [f"STRICT = {[name for name, known in OPS.items() if known.strict]!r}", *_wanted(program, devices)]
    weights = sorted(_weights(program))
    for device, name in weights:
        own = next(d for d in devices if d.type == device)
        dtype = DTYPES[own.default_amp if name.startswith("low") else "fp32"]
        grad = ", requires_grad=True" if name.startswith("leaf") else ""
        lines.append(f"{_variable(device, name)} = new({device!r}, {dtype}{grad})")
    body = _body(program, "", "")
    if _raises(program):
        body = ["try:", *_indented(body), "except ValueError:", "    seen('end', 'exception', 'not caught')"]
    return "\n".join([*lines, "", _state("0", "at the start"), *body, _state("end", "at the end")])


def _wanted(program: Program, devices: Sequence[Device]) -> list[str]:
    """Return the source of a dictionary of the expected observations, in order, by step and name."""
    found: dict[tuple[str, str], list[object]] = {}
    for seen in model(program, facts(devices)):
        value = astuple(seen.value) if isinstance(seen.value, State) else seen.value
        found.setdefault((seen.where, seen.what), []).append(value)
    return ["WANTED = {", *(f"    {key!r}: {values!r}," for key, values in found.items()), "}"]


def _state(where: str, what: str) -> str:
    return f"state({where!r}, {what!r})"


def _nested(step: Step) -> tuple[Program, ...]:
    match step:
        case With(_, body) | Decorated(_, body) | Catch(body) | NoGrad(body) | InferenceMode(body) | Thread(body):
            return (body,)
        case Reenter(_, body, second_body) | Generator(_, body, second_body):
            return (body, second_body)
    return ()


def _all(program: Program) -> Iterator[Step]:
    for step in program:
        yield step
        for body in _nested(step):
            yield from _all(body)


def _raises(program: Program) -> bool:
    return any(isinstance(step, Raise) for step in _all(program))


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" if line else "" for line in lines]


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


def _body(program: Program, where: str, indent: str, first: int = 1) -> list[str]:
    lines = []
    for number, step in enumerate(program, first):
        place = f"{where}.{number}" if where else str(number)
        lines += [f"{indent}{line}" if line else "" for line in _step(step, place)]
    return lines


def _inside(head: str, program: Program, where: str) -> list[str]:
    return [head, f"    {_state(where, 'inside the region')}", *_body(program, where, "    ")]


def _step(step: Step, where: str) -> list[str]:
    name = where.replace(".", "_")

    def then(lines: Sequence[str], after: str) -> list[str]:
        """Lines, and behind them a state, which is seen on the way out of them too."""
        state = _state(where, after)
        return ["try:", *_indented(lines), "finally:", f"    {state}"] if _raises((step,)) else [*lines, state]

    match step:
        case With(options, body):
            return then(_inside(f"with {_region(options)}:", body, where), "after the region")
        case Decorated(options, body, calls, around):
            called = then([f"f{name}()"], "after the region") * calls
            lines = [f"@{_region(options)}", *_inside(f"def f{name}():", body, where), ""]
            if around is None:
                return [*lines, *called]
            whole = [*_inside(f"with {_region(around)}:", (), where), *_indented(called)]
            return [*lines, *then(whole, "after the region")]
        case Reenter(options, body, second_body, nested):
            first = _inside(f"with r{name}:", body, where)
            second = then(_inside(f"with r{name}:", second_body, where), "after the region")
            if nested:
                both = then([*first, *_indented(second)], "after the region")
            else:
                both = [*then(first, "after the region"), *second]
            return [f"r{name} = {_region(options)}", *both]
        case Generator(options, body, between):
            lines = [f"def g{name}():", *_indented(_inside(f"with {_region(options)}:", body, where))]
            later = _body(between, where, "    ", len(body) + 1) or ["    pass"]
            return [*lines, "        yield", "", *then([f"for _ in g{name}():", *later], "after the region")]
        case Op(op, device, inputs):
            tensors = [
                f"last.get({device!r}, new({device!r}, torch.float32))"
                if dtype == LAST
                else f"new({device!r}, {DTYPES[dtype]})"
                for dtype in inputs
            ]
            return [_op(where, op, device, tensors)]
        case UseWeight(device, weight):
            return [_op(where, "mm", device, [f"new({device!r}, torch.float32)", _variable(device, weight)])]
        case Set("cache_enabled" as what, _, value):
            return [f"torch.set_autocast_cache_enabled({value})", _state(where, f"after {what} was set")]
        case Set(what, device, value):
            given = DTYPES[str(value)] if what == "dtype" else value
            return [f"torch.set_autocast_{what}({device!r}, {given})", _state(where, f"after {what} was set")]
        case ClearCache():
            return ["torch.clear_autocast_cache()"]
        case Raise():
            return ['raise ValueError("planned")']
        case Catch(body):
            inner = _body(body, where, "    ") or ["    pass"]
            caught = f"    seen({where!r}, 'exception', 'caught')"
            return ["try:", *inner, "except ValueError:", caught, _state(where, "after what may raise")]
        case NoGrad(body):
            return ["with torch.no_grad():", *(_body(body, where, "    ") or ["    pass"])]
        case InferenceMode(body):
            return ["with torch.inference_mode():", *(_body(body, where, "    ") or ["    pass"])]
        case Thread(body):
            inner = [f"    {_state(where, 'in a new thread')}", *_body(body, where, "    ")]
            return [f"def t{name}():", *inner, "", *then([f"in_thread(t{name})"], "after the thread")]


def _op(where: str, op: str, device: str, tensors: Sequence[str]) -> str:
    known = OPS[op]
    return f"op({where!r}, {op!r}, {known.overload!r}, {device!r}, {', '.join([known.source, *tensors])})"
