"""A mutant: one way in which torch, a backend or a compiler can break a promise, and how to put it there."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

Inject = Callable[[str], AbstractContextManager[object]]
"""Breaks a promise on a device, which it is given by name, while what it returns is entered."""

Result = Mapping[str, str]
"""What became of a case: `id`, `suite`, `rule`, `status`, `message` and so on, as in a run file."""

Change = Callable[..., Any]
"""`change(own, *args, **kwargs)`: what is called in place of the function `own`."""

CPU, CUDA, XPU, MPS, MTIA, JAX = "cpu", "virtual:cuda", "virtual:xpu", "virtual:mps", "virtual:mtia", "jax"
HERE = (CPU, CUDA, XPU, MPS, MTIA)
"""The devices whose cases run in one process; each other device needs a process to itself."""


@dataclass(frozen=True)
class Mutant:
    """A broken promise.

    `rule`: the `suite/rule` whose cases must be red under it on each of `devices`. `cases`: a glob of the ids of the
    cases of the rule that can notice it at all; an op's autocast kernel concerns the cases of that op alone.
    """

    name: str
    rule: str
    inject: Inject
    devices: tuple[str, ...] = (CPU,)
    cases: str = "*"


def mutants(tables: Mapping[str, Mapping[str, Inject]]) -> tuple[Mutant, ...]:
    """Return a mutant for each name and injection of some tables.

    The name of a table is a rule, followed by the devices unless that is the CPU alone.
    """
    return tuple(
        Mutant(name, rule, inject, tuple(devices) or (CPU,))
        for key, table in tables.items()
        for rule, *devices in [key.split()]
        for name, inject in table.items()
    )


# ---- ways to inject


def put(owner: Any, **wrong: Any) -> Inject:
    """Replace attributes of a class or a module, or add them."""
    return lambda device: patch.multiple(owner, create=True, **wrong)


def wrap(owner: Any, **changes: Change) -> Inject:
    """Replace functions of a class or a module by `change(own, ...)`."""

    def inject(device: str) -> AbstractContextManager[object]:
        return patch.multiple(owner, **{name: _called(getattr(owner, name), by) for name, by in changes.items()})

    return inject


def _called(own: Callable[..., Any], change: Change) -> Callable[..., Any]:
    return lambda *args, **kwargs: change(own, *args, **kwargs)


def both(*injects: Inject) -> Inject:
    """Break several promises at once."""

    def inject(device: str) -> AbstractContextManager[object]:
        stack = ExitStack()
        for each in injects:
            stack.enter_context(each(device))
        return stack

    return inject


def fresh(make: Callable[[], Inject]) -> Inject:
    """Make an injection that remembers something anew each time."""
    return lambda device: make()(device)


# ---- changes


def returns(value: object) -> Change:
    """Take anything and always return the same."""
    return lambda own, *args, **kwargs: value


def then(action: Callable[..., object]) -> Change:
    """Call `action` with the first argument afterwards."""

    def change(own: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        out = own(self, *args, **kwargs)
        action(self)
        return out

    return change


def giving(make: Callable[[Any], Any]) -> Change:
    """Return what `make` makes of the result."""
    return lambda own, *args, **kwargs: make(own(*args, **kwargs))


def within(region: Callable[[], AbstractContextManager[object]]) -> Change:
    """Call the function within a region."""

    def change(own: Any, *args: Any, **kwargs: Any) -> Any:
        with region():
            return own(*args, **kwargs)

    return change


def on_error(action: Callable[[], object]) -> Change:
    """Call `action` where the function raises."""

    def change(own: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return own(*args, **kwargs)
        except Exception:
            action()
            raise

    return change
