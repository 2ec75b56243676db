"""Nothing that a jitted step's Python reads is old, and nothing that it draws is drawn once.

For each way in which a program holds state or draws: a step, and what changes between two calls. `jit` and
`torch.compile` give what eager calls give; where a program cannot, `jit` runs eagerly and says why.
"""

import contextvars
import operator
import os
import random
import sys
import threading
import types
import warnings
import weakref
from array import array
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.checkpoint import checkpoint

from ampcheck.jax_device import jit, to_jax
from tests.jax.agreement import close, ones

Kept = tuple[Callable[[Tensor], Tensor], Callable[[], object]]
"""A step of one tensor, and what changes what it reads."""


class Slotted:
    __slots__ = ("scale",)


class Scaled(nn.Module):
    scale = 2.0
    factors: Any = None

    def forward(self, a: Tensor) -> Tensor:
        return self.scaled(a)

    def scaled(self, a: Tensor) -> Tensor:
        return a * self.scale


class Owner:
    scale = 2.0

    def __init__(self) -> None:
        self.inner = types.SimpleNamespace(scale=2.0)

    @property
    def halved(self) -> float:
        return self.scale / 2

    @classmethod
    def of_class(cls, a: Tensor) -> Tensor:
        return a * cls.scale


SCALE = 2.0
HOOKS: list[Any] = []
INFERENCE = torch.inference_mode()
VARIABLE = contextvars.ContextVar("VARIABLE", default=2.0)
LOCAL = threading.local()
helpers = types.ModuleType("helpers_of_the_step")
exec("SCALE = 2.0\ndef scaled(a):\n    return a * SCALE\n", helpers.__dict__)
sys.modules[helpers.__name__] = helpers


def _set(owner: Any, name: str, value: object = 5.0) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def _global(name: str, value: object) -> Callable[[], None]:
    return lambda: globals().update({name: value})


def _double(a: Tensor) -> Tensor:
    return a * 2


def _read(owner: Any, step: Callable[[Tensor], Tensor], name: str = "scale") -> Kept:
    """A step that reads an attribute, which is 2 and becomes 5."""
    setattr(owner, name, 2.0)
    return (step, _set(owner, name))


def _of(owner: Any, step: Callable[[Any, Tensor], Tensor]) -> Kept:
    """A step that reads the `scale` of an object."""
    return _read(owner, lambda a: step(owner, a))


def _held(held: Any, step: Callable[[Any, Tensor], Tensor], change: Callable[[Any], object]) -> Kept:
    """A step that reads an object, and what changes this in place."""
    return (lambda a: step(held, a), lambda: change(held))


def _imported(a: Tensor) -> Tensor:
    import helpers_of_the_step as inner  # noqa: PLC0415  # the case

    return a * inner.SCALE


def _set_forward(module: nn.Module) -> None:
    module.forward = lambda a: a * 5  # type: ignore[method-assign]


def _replaced_method() -> Kept:
    before = Scaled.scaled
    return (Scaled(), _set(Scaled, "scaled", lambda self, a: before(self, a) * 2))


def _attribute_of_the_step() -> Kept:
    def scaled(a: Tensor) -> Tensor:
        return a * scaled.scale  # type: ignore[attr-defined, no-any-return]

    return _read(scaled, scaled)


def _weak_reference() -> Kept:
    owner = Owner()
    held, reference = [owner], weakref.ref(owner)
    return (lambda a: a * reference().scale, _set(held[0], "scale"))  # type: ignore[union-attr]


def _nested() -> Kept:
    inner = types.SimpleNamespace(scale=2.0)
    outer = {"layers": [types.SimpleNamespace(attention=types.SimpleNamespace(at={0: [inner]}))]}
    return (lambda a: a * outer["layers"][0].attention.at[0][0].scale, _set(inner, "scale"))  # type: ignore[attr-defined]


def _around(reader: Callable[[Any], Any]) -> Kept:
    table = {"scale": 2.0}
    read = reader(table)
    return (lambda a: a * read("scale"), lambda: table.update(scale=5.0))


def _setting(switch: Callable[..., object], asked: Callable[..., object], value: object, *of: object) -> Kept:
    before = asked(*of)
    HOOKS.append(types.SimpleNamespace(remove=partial(switch, *of, before)))
    return (lambda a: a * (2 if asked(*of) == before else 5), partial(switch, *of, value))


def _infer(on: bool) -> None:
    INFERENCE.__enter__() if on else INFERENCE.__exit__(None, None, None)
    torch.set_grad_enabled(True)  # so that it differs in nothing else


def _closure() -> Kept:
    scale = 2.0

    def change() -> None:
        nonlocal scale
        scale = 5.0

    return (lambda a: a * scale, change)


def _default(a: Tensor, scale: float = 2.0) -> Tensor:
    return a * scale


def _hooked(register: str, hook: Callable[..., Any], inner: nn.Module | None = None, inside: bool = True) -> Kept:
    inner = inner or nn.Linear(2, 2, bias=False).to("jax")
    for weight in inner.parameters():
        nn.init.ones_(weight)
    whole = nn.Sequential(nn.Identity(), inner) if inside else inner
    return (lambda a: whole(a).detach(), lambda: getattr(inner, register)(hook))


def _add_before(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    return (given[0] + 1,)


def _add_after(_: nn.Module, given: object, out: Tensor) -> Tensor:
    return out + 1


STATE: dict[str, Callable[[], Kept]] = {
    "global number": lambda: (lambda a: a * SCALE, _global("SCALE", 5.0)),
    "global function": lambda: (lambda a: _double(a), _global("_double", lambda a: a * 5)),
    "late key of a dictionary": lambda: _held({}, lambda d, a: a * d.get("scale", 2.0), lambda d: d.update(scale=5.0)),
    "module of Python": lambda: _read(helpers, lambda a: helpers.scaled(a), "SCALE"),
    "module imported inside": lambda: _read(helpers, _imported, "SCALE"),
    "class attribute of a module": lambda: _read(Scaled, Scaled()),
    "forward of a module of PyTorch's": lambda: _held(nn.ReLU(), lambda m, a: m(a), _set_forward),
    "replaced method": _replaced_method,
    "class attribute of an object": lambda: _held(
        Owner(), lambda owner, a: a * owner.scale, lambda _: setattr(Owner, "scale", 5.0)
    ),
    "property of an object": lambda: _held(
        Owner(), lambda owner, a: a * owner.halved, lambda _: setattr(Owner, "scale", 5.0)
    ),
    "slots": lambda: _of(Slotted(), lambda slotted, a: a * slotted.scale),
    "weak reference": _weak_reference,
    "function's attribute": _attribute_of_the_step,
    "defaults of a function": lambda: (lambda a: _default(a), _set(_default, "__defaults__", (5.0,))),
    "closure": _closure,
    "list in place": lambda: _held([2.0], lambda scales, a: a * sum(scales), lambda scales: scales.append(3.0)),
    "object far inside": _nested,
    "array of NumPy": lambda: _held(np.array([2.0]), lambda s, a: a * float(s[0]), lambda s: s.fill(5.0)),
    "bytes in place": lambda: _held(bytearray(b"\2"), lambda s, a: a * s[0], lambda s: s.append(s.pop() + 3)),
    "array in place": lambda: _held(array("d", [2]), lambda s, a: a * s[0], lambda s: s.insert(0, 5)),
    "method of a dictionary": lambda: _around(lambda table: table.get),
    "proxy of a dictionary": lambda: _around(lambda table: types.MappingProxyType(table).__getitem__),
    "environment": lambda: (lambda a: a * int(os.environ.get("A_SCALE", "2")), lambda: os.environ.update(A_SCALE="5")),
    "context variable": lambda: (lambda a: a * VARIABLE.get(), lambda: VARIABLE.set(5.0)),
    "thread's own": lambda: _of(LOCAL, lambda local, a: a * local.scale),
    "tensor's attribute": lambda: _of(ones(2), lambda held, a: a * held * held.scale),
    "distribution": lambda: _held(
        torch.distributions.Normal(ones(2) * 2, ones(2)), lambda n, a: a * n.mean, lambda n: setattr(n, "loc", ones(2))
    ),
    "CPU tensor": lambda: _held(torch.full((2,), 2.0), lambda host, a: a * host.to("jax"), lambda host: host.fill_(5)),
    "CPU tensor by NumPy": lambda: _held(torch.tensor(2.0), lambda host, a: a * host, lambda t: t.numpy().fill(5)),
    "CPU tensor that no walk reaches": lambda: _held(
        np.array([None, torch.full((2,), 2.0)], object), lambda s, a: a * s[1].to("jax"), lambda s: s[1].fill_(5)
    ),
    "default dtype": lambda: (
        lambda a: a * torch.full((2,), 0.1, device="jax"),
        lambda: torch.set_default_dtype(torch.float64),
    ),
    "grad mode": lambda: _setting(torch.set_grad_enabled, torch.is_grad_enabled, False),
    "inference mode": lambda: _setting(_infer, torch.is_inference_mode_enabled, True),
    "default device": lambda: _setting(torch.set_default_device, lambda: torch.zeros(1).device, "meta"),
    "weight cache": lambda: _setting(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled, False),
    "checks": lambda: _setting(torch.jax.set_checks, torch.jax.get_checks, True),
    "fixed": lambda: _setting(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled, True),
    "flash": lambda: _setting(torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.flash_sdp_enabled, False),
    "autocast": lambda: _setting(torch.set_autocast_enabled, torch.is_autocast_enabled, True, "jax"),
    "autocast of the CPU": lambda: _setting(torch.set_autocast_enabled, torch.is_autocast_enabled, True, "cpu"),
    "autocast's dtype": lambda: _setting(torch.set_autocast_dtype, torch.get_autocast_dtype, torch.float32, "jax"),
    "dtype on the CPU": lambda: _setting(torch.set_autocast_dtype, torch.get_autocast_dtype, torch.float32, "cpu"),
    "forward pre-hook": lambda: _hooked("register_forward_pre_hook", _add_before),
    "forward hook of a module without parameters": lambda: _hooked("register_forward_hook", _add_after, nn.ReLU()),
    "forward pre-hook of the root": lambda: _hooked("register_forward_pre_hook", _add_before, inside=False),
    "global hook": lambda: _held(
        nn.ReLU(), lambda module, a: module(a), lambda _: HOOKS.append(register_module_forward_hook(_add_after))
    ),
    "tensor hook": lambda: _held(
        ones(2).requires_grad_(),
        lambda weight, a: torch.autograd.grad((a * weight).sum(), weight)[0],
        lambda weight: weight.register_hook(lambda grad: grad * 5),
    ),
}
COMPILED = {
    *("global number", "class attribute of a module", "class attribute of an object", "closure", "list in place"),
    "slots",
}


@pytest.fixture(autouse=True)
def restore() -> Iterator[Callable[[], None]]:
    """Give what puts everything back that a case may change."""
    before, scaled, python = dict(globals()), Scaled.scaled, helpers.scaled

    def again() -> None:
        globals().update({name: before[name] for name in ("SCALE", "_double")})
        helpers.scaled, Scaled.scaled = python, scaled  # type: ignore[method-assign]
        helpers.SCALE = Scaled.scale = Owner.scale = 2.0
        torch.set_default_dtype(torch.float32)
        _default.__defaults__ = (2.0,)
        VARIABLE.set(2.0)
        os.environ.pop("A_SCALE", None)
        while HOOKS:
            HOOKS.pop().remove()

    yield again
    again()


def _compile(step: Callable[..., Any]) -> Any:
    return torch.compile(step, backend="jax")


def _three(kept: Kept, compiler: Callable[..., Any]) -> list[Any]:
    """Return what the calls give: two, and two after the change."""
    step = compiler(kept[0])
    given = torch.tensor([1.0, 3.0], device="jax")
    out = [step(given).tolist() for _ in range(2)]
    kept[1]()
    out += [step(given).tolist() for _ in range(2)]
    assert getattr(step, "compiles", 0) <= 2
    return out


@pytest.mark.parametrize("name", STATE)
def test_state_that_changes_between_calls_is_never_old(name: str, restore: Callable[[], None]) -> None:
    def fresh(compiler: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        out = _three(STATE[name](), compiler)
        restore()
        return out

    eager = fresh(lambda step: step)
    assert eager[1] != eager[2], "the change must matter"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fresh(jit) == eager
    if name in COMPILED:
        assert fresh(_compile) == eager


NEXT = iter(range(100))
OWN = random.Random(0)
DRAWS: dict[str, Callable[[Tensor], Any]] = {
    "random.random": lambda a: a * random.random(),
    "a new generator": lambda a: a * random.Random().random(),
    "a generator of Python's": lambda a: a * OWN.random(),
    "numpy.random": lambda a: a * float(np.random.rand()),
    "os.urandom": lambda a: a * int.from_bytes(os.urandom(2), "little"),
    "next": lambda a: a * next(NEXT),
    "torch.rand of the CPU": lambda a: a * torch.rand(2).to("jax"),
    "a generator of PyTorch's": lambda a: a * torch.rand(2, device="jax", generator=GENERATOR),
    "a generator of the device": lambda a: a + torch.poisson(a * 1e6, generator=OF_DEVICE),
    "layer drop": lambda a: a if random.random() < 0.5 else a * random.random(),
}
GENERATOR, OF_DEVICE = torch.Generator(), torch.Generator("jax")


@pytest.mark.parametrize("name", DRAWS)
def test_what_draws_is_drawn_at_each_call_and_the_line_is_named(name: str) -> None:
    random.seed(0)
    step, given = jit(DRAWS[name]), ones(2)
    with pytest.warns(UserWarning, match=r"jit runs .* eagerly, as .*test_jit_state\.py:\d+"):
        first = step(given)
    results = {tuple(out.tolist()) for out in (first, *(step(given) for _ in range(5)))}
    assert len(results) == 6 or (name == "layer drop" and len(results) > 2)


@pytest.mark.parametrize("compiler", [jit, _compile])
@pytest.mark.parametrize("options", [{"use_reentrant": True}, {"use_reentrant": False}])
def test_a_recomputation_draws_the_mask_again(compiler: Callable[..., Any], options: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 64, bias=False), nn.Dropout(0.5), nn.Linear(64, 3, bias=False)).to("jax")

    def loss(a: Tensor) -> Tensor:
        inner = checkpoint(model, a, **options)
        return checkpoint(lambda b: F.dropout(b, 0.3), inner, **options).sum()

    forward = compiler(loss) if compiler is not jit else loss

    def step(a: Tensor) -> tuple[Tensor, Tensor]:
        a = a.detach().requires_grad_()
        out = forward(a)
        out.backward()
        assert a.grad is not None
        return out.detach(), (a.grad * a.detach()).sum()

    given, results = torch.randn(5, 8, device="jax"), []
    run = jit(step) if compiler is jit else step
    for _ in range(3):
        out, again = run(given)
        torch.testing.assert_close(out, again)
        results.append(out.item())
    assert len(set(results)) == 3


@pytest.mark.parametrize(("drop", "reentrant"), [(0.0, False), (0.5, True)])
def test_a_recomputation_saves_the_memory_that_it_saves_in_jax(drop: float, reentrant: bool) -> None:
    """XLA merges nothing that is computed again with what was computed first, drawn masks included."""

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(drop), nn.Linear(256, 64)).to("jax")

    blocks = [block() for _ in range(8)]

    def step(x: Tensor, again: bool) -> Any:
        x = x.detach().requires_grad_()
        y = x
        for module in blocks:
            y = y + (checkpoint(module, y, use_reentrant=reentrant) if again else module(y))
        y.square().mean().backward()
        return [x.grad, *(p.grad for module in blocks for p in module.parameters())]

    def loss(weights: Any, x: Any) -> Any:
        def block(w: Any, x: Any) -> Any:
            return jax.nn.gelu(x @ w[0] + w[1], approximate=False) @ w[2] + w[3]

        for w in weights:
            x = x + jax.checkpoint(block)(w, x)
        return (x**2).mean()

    def temporary(lowered: Any, **given: Any) -> int:
        return lowered.compile(**given).memory_analysis().temp_size_in_bytes

    x = torch.randn(512, 64, device="jax")
    whole, again = (temporary(jit(partial(step, again=again)).lower(x)) for again in (False, True))
    assert again < 0.6 * whole
    if not drop:
        weights = [[jnp.ones(n, jnp.float32) for n in ((64, 256), 256, (256, 64), 64)] for _ in blocks]
        lowered = jax.jit(jax.grad(loss, (0, 1))).lower(weights, to_jax(x))
        # XLA's CPU compiler takes JAX's own barriers away otherwise.
        in_jax = temporary(lowered, compiler_options={"xla_disable_hlo_passes": "cse_barrier_expander"})
        assert again <= 1.1 * in_jax
        close(jit(step)(x, True), [g.cpu() for g in step(x, False)])


def test_random_state_inside_of_a_trace() -> None:
    def twice(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = torch.jax.get_rng_state()
        first = torch.rand_like(a)
        with torch.random.fork_rng(devices=[0], device_type="jax"):
            torch.rand_like(a)
            torch.jax.set_rng_state(state)
            again = torch.rand_like(a)
        return first, again, torch.rand_like(a)

    step = jit(twice)
    one, two = step(ones(3)), step(ones(3))
    assert torch.equal(one[0], one[1])
    assert not torch.equal(one[0], one[2])
    assert not torch.equal(one[0], two[0])
    with pytest.warns(UserWarning, match="eagerly, as the function keeps the state of the random numbers"):
        jit(lambda a: torch.jax.get_rng_state())(ones(3))
    with pytest.warns(UserWarning, match="eagerly, as the function seeds the random numbers"):
        jit(lambda a: (torch.jax.manual_seed(1), torch.rand_like(a))[1])(ones(3))


def test_a_clock_is_named() -> None:
    import time  # noqa: PLC0415  # beside its one use

    for step, name in (
        (lambda a: a * time.time(), "time.time"),
        (lambda a: a * datetime.now().second, "datetime.now"),
        (lambda a: open(__file__).close() or a, "open"),
    ):
        with pytest.warns(UserWarning, match=rf"jit keeps what {name} at .*test_jit_state\.py:\d+ gave"):
            jit(step)(ones(2))


SECOND = operator.itemgetter(1)


def test_members_that_are_read_only_are_left_alone() -> None:
    run = jit(lambda x: SECOND(x) * 2, fullgraph=True)
    x = torch.arange(2.0).to("jax")
    assert [run(x).item(), run(x).item(), run.compiles] == [2.0, 2.0, 1]
