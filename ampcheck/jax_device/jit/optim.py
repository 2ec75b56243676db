"""Optimizers and gradient scalers in a traced step: what they keep on the host, and what they decide there."""

from __future__ import annotations

import contextlib
import inspect
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakSet

import jax
import jax.numpy as jnp
import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ampcheck.jax_device.annotations import DeviceStorage, Function, Kwargs, Tree
from ampcheck.jax_device.storage.arrays import storage_of

Place = tuple[Kwargs, str]  # an optimizer's group and a key of it


class Concretize(Exception):
    """A hyperparameter that was made an input is looked at by Python, so it must be part of the program."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.place = place


TracedNumber = jax.Array | float
"""A number of the program, or one of Python's."""


class Traced:
    """A number of the program, as PyTorch's symbolic numbers hold one: what a `torch.SymFloat` computes with.

    `traced` is JAX's number; `place` says which hyperparameter it comes from, for the error when Python looks at it.
    """

    def __init__(self, traced: TracedNumber, place: Place) -> None:
        self.traced, self.place = traced, place

    def _with(self, traced: TracedNumber) -> Traced:
        return Traced(traced, self.place)

    def _look(self, *_: Tree) -> Tree:
        raise Concretize(self.place)

    guard_float = guard_bool = guard_int = bool_ = int_ = _look
    eq = ne = lt = le = gt = ge = is_integer = sym_sum = _look

    @staticmethod
    def _no() -> bool:
        return False

    is_int = is_bool = is_nested_int = is_constant = has_hint = is_symbolic_int = _no

    def is_float(self) -> bool:
        """Return True: it is a Python float to the caller."""
        return True

    def wrap_float(self, number: float) -> Traced:
        """Wrap the other operand, a plain number."""
        return self._with(number)

    wrap_int = wrap_float

    def _graph_repr(self) -> str:
        return "a hyperparameter traced by jit"

    __str__ = str = _graph_repr

    def neg(self) -> Traced:
        """Negate the number."""
        return self._with(-self.traced)

    def _binary(compute: Function) -> Callable[[Traced, Traced], Traced]:  # type: ignore[misc]
        def method(self: Traced, other: Traced) -> Traced:
            return self._with(compute(self.traced, other.traced))

        return method

    add, sub, mul = _binary(operator.add), _binary(operator.sub), _binary(operator.mul)
    truediv = float_truediv = _binary(operator.truediv)
    pow = float_pow = _binary(operator.pow)


_static: dict[tuple[int, str], Kwargs] = {}


def make_static(place: Place) -> None:
    """Make that hyperparameter a part of the program from now on, so that a change of it makes a new one."""
    _static[id(place[0]), place[1]] = place[0]  # the group is kept, so that its id stays its own


def hyperparameters(optimizer: Optimizer) -> list[tuple[Kwargs, str]]:
    """Return the hyperparameters that are inputs: each group's learning rate where it is a Python float."""
    return [(g, "lr") for g in optimizer.param_groups if type(g.get("lr")) is float and (id(g), "lr") not in _static]


_made_capturable: WeakSet[Optimizer] = WeakSet()


def prepare(optimizer: Optimizer) -> None:
    """Bring what the optimizer keeps on the host to the device: step counts, by PyTorch's `capturable`.

    In float64, as Python computes with those of the host: 1 - 0.999**step in float32 is wrong by 1e-5 of itself. Those
    of a group that was made capturable by its owner stay as they are, and so do its eager steps.
    The state of parameters that have none yet is made, where the optimizer can make it without a gradient, so that the
    first step is the same program as the later ones.
    """
    for group in optimizer.param_groups:
        params = [p for p in group["params"] if p.device.type == "jax"]
        if not params or "capturable" not in group:
            continue
        if not group["capturable"]:
            group["capturable"] = True
            _made_capturable.add(optimizer)
        _initialize(optimizer, group, [p for p in params if p.requires_grad and not optimizer.state.get(p)])
        for p in params:
            step = optimizer.state[p].get("step") if p in optimizer.state else None
            if not isinstance(step, torch.Tensor):
                continue
            wide = optimizer in _made_capturable and not group.get("fused")  # PyTorch's fused kernels take float32
            dtype = torch.float64 if wide else step.dtype
            if (step.device.type, step.dtype) != ("jax", dtype):
                optimizer.state[p]["step"] = step.to("jax", dtype)


def _initialize(optimizer: Optimizer, group: Kwargs, params: list[torch.Tensor]) -> None:
    make = getattr(optimizer, "_init_group", None)
    if not params or make is None:
        return
    lists = list(inspect.signature(make).parameters)[1:]
    before = {p: p.grad for p in group["params"]}
    try:
        for p in group["params"]:
            p.grad = torch.empty_like(p) if p in set(params) else None
        make({**group, "params": params}, *([] for _ in lists))
    finally:
        for p, grad in before.items():
            p.grad = grad


def prepare_scaler(scaler: torch.amp.GradScaler) -> None:
    """Make the scale and its tracker, which PyTorch makes at the first `scale`."""
    if scaler._scale is None:
        scaler._lazy_init_scale_growth_tracker(torch.device("jax"))


def remembered(optimizers: list[Optimizer], scalers: list[torch.amp.GradScaler]) -> Callable[[], None]:
    """Remember what the optimizers and scalers keep now; the returned function puts it back."""
    kept = [(o, set(vars(o)), {p: dict(s) for p, s in o.state.items()}) for o in optimizers]
    stages = [(s, {i: _stage(stage) for i, stage in s._per_optimizer_states.items()}) for s in scalers]

    def rewind() -> None:
        for optimizer, attributes, states in kept:
            for name, value in list(vars(optimizer).items()):
                if name not in attributes and isinstance(value, torch.Tensor):
                    delattr(optimizer, name)  # what GradScaler.step gives a fused optimizer
            for p in list(optimizer.state):
                if p not in states:
                    del optimizer.state[p]
                else:
                    optimizer.state[p].clear()
                    optimizer.state[p].update(states[p])
        for scaler, stage in stages:
            scaler._per_optimizer_states.clear()
            scaler._per_optimizer_states.update({i: _stage(s) for i, s in stage.items()})

    return rewind


def _stage(stage: Kwargs) -> Kwargs:
    return {**stage, "found_inf_per_device": dict(stage["found_inf_per_device"])}


class _Active(threading.local):
    written: Callable[[], list[DeviceStorage]] | None = None


_active = _Active()
_plain_step = torch.amp.GradScaler._maybe_opt_step


def _masked_step(self: torch.amp.GradScaler, optimizer: Optimizer, state: Kwargs, *args: Tree, **kwargs: Tree) -> Tree:
    """Take a step of an optimizer whose effect is taken back, on the device, where a gradient is not finite."""
    if _active.written is None:
        return _plain_step(self, optimizer, state, *args, **kwargs)
    found = jnp.asarray(sum(_values(v) for v in state["found_inf_per_device"].values()) > 0)
    known = {p: set(optimizer.state[p]) for p in optimizer.state}
    before = {s: s.array for s in _active.written()}
    result = optimizer.step(*args, **kwargs)
    for storage, array in before.items():
        if storage.array is not array:
            storage.array = jnp.where(found, array, storage.array)
    _mask_new(optimizer, known, found)
    return result


def _values(tensor: torch.Tensor) -> jax.Array:
    value: jax.Array = storage_of(tensor).array.reshape(())
    return value


def _mask_new(optimizer: Optimizer, known: dict[torch.Tensor, set[str]], found: jax.Array) -> None:
    """Set state that this step made to zero where the step is taken back: the next step then starts from nothing.

    Raises RuntimeError for SGD with dampening, whose first momentum is the gradient undampened.
    """
    for p, state in optimizer.state.items():
        for name, value in state.items():
            if name in known.get(p, ()) or not isinstance(value, torch.Tensor):
                continue
            if any(g.get("dampening") for g in optimizer.param_groups):
                raise RuntimeError(
                    f"{type(optimizer).__name__} makes {name} in its first step, which jit cannot take back when a "
                    "gradient overflows and dampening is not 0; take one step before jit, or set dampening=0"
                )
            storage = storage_of(value)
            storage.array = jnp.where(found, jnp.zeros_like(storage.array), storage.array)


@contextlib.contextmanager
def traced_optimizers(
    optimizers: list[Optimizer], numbers: Sequence[jax.Array], written: Callable[[], list[DeviceStorage]]
) -> Iterator[None]:
    """Make hyperparameters the program's numbers, and have `GradScaler.step` decide on the device, while inside.

    `written()` gives the storages from before the trace. Raises RuntimeError where a hyperparameter is changed inside.
    """
    places = [place for optimizer in optimizers for place in hyperparameters(optimizer)]
    originals = [group[key] for group, key in places]
    given = [torch.SymFloat(Traced(n, (g, k))) for n, (g, k) in zip(numbers, places, strict=True)]
    before = _active.written

    def known(optimizer: Optimizer, *_: object) -> None:
        if not any(optimizer is o for o in optimizers):
            raise RuntimeError(
                f"a jitted function takes a step of an optimizer ({type(optimizer).__name__}) that it does not reach "
                "by its arguments, closure or globals, so its learning rate would be fixed; pass it as an argument"
            )

    hook = register_optimizer_step_pre_hook(known)
    try:
        for (group, key), value in zip(places, given, strict=True):
            group[key] = value
        _active.written = written
        torch.amp.GradScaler._maybe_opt_step = _masked_step  # type: ignore[method-assign,assignment]
        yield
        for (group, key), value in zip(places, given, strict=True):
            if group[key] is not value:
                raise RuntimeError(
                    f"{key} of an optimizer was changed inside of a jitted function; call the scheduler outside of it"
                )
    finally:
        hook.remove()
        _active.written = before
        if before is None:
            torch.amp.GradScaler._maybe_opt_step = _plain_step  # type: ignore[method-assign]
        for (group, key), original in zip(places, originals, strict=True):
            group[key] = original
