"""Nothing that a jitted step's Python reads is old, and nothing that it draws is drawn once.

For each way in which a program holds state or draws: a step, and what changes between two calls. `jit` and
`torch.compile` give what eager calls give; where a program cannot, `jit` runs eagerly and says why.
"""

from __future__ import annotations

import contextvars
import operator
import os
import random
import sys
import threading
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.checkpoint import checkpoint

from ampcheck.jax_device import jit
from tests.jax.agreement import ones


class Kept(NamedTuple):
    """A step of one tensor, and what changes what it reads."""

    step: Callable[[Tensor], Tensor]
    change: Callable[[], object]


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
LATE: dict[str, float] = {}
KIND: Any = nn.ReLU
HOOKS: list[Any] = []
VARIABLE = contextvars.ContextVar("VARIABLE", default=2.0)
LOCAL = threading.local()
LOCAL.scale = 2.0
helpers = types.ModuleType("helpers_of_the_step")
exec("SCALE = 2.0\ndef scaled(a):\n    return a * SCALE\n", helpers.__dict__)
sys.modules[helpers.__name__] = helpers


def _set(owner: Any, name: str, value: object = 5.0) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def _global(name: str, value: object) -> Callable[[], None]:
    return lambda: globals().update({name: value})


def _double(a: Tensor) -> Tensor:
    return a * 2


def global_number() -> Kept:
    return Kept(lambda a: a * SCALE, _global("SCALE", 5.0))


def global_class() -> Kept:
    return Kept(lambda a: KIND()(a - 2), _global("KIND", nn.GELU))


def global_function() -> Kept:
    return Kept(lambda a: _double(a), _global("_double", lambda a: a * 5))


def late_key_of_a_dictionary() -> Kept:
    LATE.clear()
    return Kept(lambda a: a * LATE.get("scale", 2.0), lambda: LATE.update(scale=5.0))


def module_of_python() -> Kept:
    helpers.SCALE = 2.0
    return Kept(lambda a: helpers.scaled(a), _set(helpers, "SCALE"))


def replaced_function_of_a_module() -> Kept:
    helpers.SCALE = 2.0
    return Kept(lambda a: helpers.scaled(a), _set(helpers, "scaled", lambda a: a * 5))


def module_imported_inside() -> Kept:
    helpers.SCALE = 2.0

    def step(a: Tensor) -> Tensor:
        import helpers_of_the_step as inner  # noqa: PLC0415  # the case

        return a * inner.SCALE

    return Kept(step, _set(helpers, "SCALE"))


def class_attribute_of_a_module() -> Kept:
    Scaled.scale = 2.0
    return Kept(Scaled(), _set(Scaled, "scale"))


def attribute_that_hides_the_class_s() -> Kept:
    Scaled.scale = 2.0
    module = Scaled()
    return Kept(module, _set(module, "scale"))


def replaced_method() -> Kept:
    module, before = Scaled(), Scaled.scaled

    def change() -> None:
        Scaled.scaled = lambda self, a: before(self, a) * 2  # type: ignore[method-assign]

    return Kept(module, change)


def class_attribute_of_an_object() -> Kept:
    Owner.scale = 2.0
    owner = Owner()
    return Kept(lambda a: a * owner.scale, _set(Owner, "scale"))


def property_of_an_object() -> Kept:
    Owner.scale = 2.0
    owner = Owner()
    return Kept(lambda a: a * owner.halved, _set(Owner, "scale"))


def class_method() -> Kept:
    Owner.scale = 2.0
    return Kept(lambda a: Owner.of_class(a), _set(Owner, "scale"))


def namespace_in_an_object() -> Kept:
    owner = Owner()
    return Kept(lambda a: a * owner.inner.scale, _set(owner.inner, "scale"))


def slots() -> Kept:
    slotted = Slotted()
    slotted.scale = 2.0
    return Kept(lambda a: a * slotted.scale, _set(slotted, "scale"))


def weak_reference() -> Kept:
    owner = Owner()
    owner.scale = 2.0
    held, reference = [owner], weakref.ref(owner)
    return Kept(lambda a: a * reference().scale, _set(held[0], "scale"))  # type: ignore[union-attr]


def function_s_attribute() -> Kept:
    def scaled(a: Tensor) -> Tensor:
        return a * scaled.scale  # type: ignore[attr-defined, no-any-return]

    scaled.scale = 2.0  # type: ignore[attr-defined]
    return Kept(scaled, _set(scaled, "scale"))


def defaults_of_a_function() -> Kept:
    def scaled(a: Tensor, scale: float = 2.0) -> Tensor:
        return a * scale

    return Kept(lambda a: scaled(a), _set(scaled, "__defaults__", (5.0,)))


def closure() -> Kept:
    scale = 2.0

    def change() -> None:
        nonlocal scale
        scale = 5.0

    return Kept(lambda a: a * scale, change)


def list_in_place() -> Kept:
    scales = [2.0]
    return Kept(lambda a: a * sum(scales), lambda: scales.append(3.0))


def members_of_a_set() -> Kept:
    chosen = {1}
    return Kept(lambda a: a * (2 if 1 in chosen else 5), lambda: (chosen.clear(), chosen.add(2)))


def deque_in_place() -> Kept:
    scales = deque([2.0], maxlen=1)
    return Kept(lambda a: a * scales[0], lambda: scales.append(5.0))


def array_of_numpy() -> Kept:
    scales = np.array([2.0])
    return Kept(lambda a: a * float(scales[0]), lambda: scales.fill(5.0))


def environment() -> Kept:
    os.environ["SCALE_OF_THE_STEP"] = "2"
    return Kept(lambda a: a * float(os.environ["SCALE_OF_THE_STEP"]), lambda: os.environ.update(SCALE_OF_THE_STEP="5"))


def context_variable() -> Kept:
    VARIABLE.set(2.0)
    return Kept(lambda a: a * VARIABLE.get(), lambda: VARIABLE.set(5.0))


def thread_s_own() -> Kept:
    LOCAL.scale = 2.0
    return Kept(lambda a: a * LOCAL.scale, _set(LOCAL, "scale"))


def tensor_s_attribute() -> Kept:
    held = ones(2)
    held.scale = 2.0  # type: ignore[attr-defined]
    return Kept(lambda a: a * held * held.scale, _set(held, "scale"))  # type: ignore[attr-defined]


def distribution() -> Kept:
    normal = torch.distributions.Normal(ones(2) * 2, ones(2))
    return Kept(lambda a: a * normal.mean, _set(normal, "loc", ones(2) * 5))


def strides_in_place() -> Kept:
    square = torch.arange(4.0, device="jax").view(2, 2)
    return Kept(lambda a: square @ a * torch.arange(2.0, device="jax"), lambda: square.t_())


def cpu_tensor() -> Kept:
    host = torch.tensor([2.0, 2.0])
    return Kept(lambda a: a * host.to("jax"), lambda: host.fill_(5.0))


def default_dtype() -> Kept:
    return Kept(lambda a: a * torch.full((2,), 0.1, device="jax"), lambda: torch.set_default_dtype(torch.float64))


def _hooked(register: str, hook: Callable[..., Any], module: nn.Module | None = None) -> Kept:
    inner = module or nn.Linear(2, 2, bias=False).to("jax")
    if isinstance(inner, nn.Linear):
        nn.init.ones_(inner.weight)
    whole = nn.Sequential(nn.Identity(), inner)
    return Kept(lambda a: whole(a).detach(), lambda: getattr(inner, register)(hook))


def forward_pre_hook() -> Kept:
    return _hooked("register_forward_pre_hook", lambda _, given: (given[0] + 1,))


def forward_hook_of_a_module_without_parameters() -> Kept:
    return _hooked("register_forward_hook", lambda _, given, out: out + 1, nn.ReLU())


def forward_pre_hook_of_the_root() -> Kept:
    root = nn.Linear(2, 2, bias=False).to("jax")
    return Kept(lambda a: root(a).detach(), lambda: root.register_forward_pre_hook(lambda _, given: (given[0] + 1,)))


def global_hook() -> Kept:
    module = nn.ReLU().to("jax")
    return Kept(lambda a: module(a), lambda: HOOKS.append(register_module_forward_hook(lambda _, given, out: out + 1)))


def tensor_hook() -> Kept:
    weight = ones(2).requires_grad_()

    def step(a: Tensor) -> Tensor:
        return torch.autograd.grad((a * weight).sum(), weight)[0]

    return Kept(step, lambda: weight.register_hook(lambda grad: grad * 5))


def removed_hook() -> Kept:
    module = nn.ReLU()
    handle = module.register_forward_hook(lambda _, given, out: out + 1)
    return Kept(lambda a: module(a), handle.remove)


def counted_by_a_class() -> Kept:
    class Counting(nn.Module):
        calls = 0

        def forward(self, a: Tensor) -> Tensor:
            type(self).calls += 1
            return a * type(self).calls

    return Kept(Counting(), lambda: None)


STATE = (
    global_number, global_class, global_function, late_key_of_a_dictionary, module_of_python, module_imported_inside,
    replaced_function_of_a_module, class_attribute_of_a_module, attribute_that_hides_the_class_s, replaced_method,
    class_attribute_of_an_object, property_of_an_object, class_method, namespace_in_an_object, slots, weak_reference,
    function_s_attribute, defaults_of_a_function, closure, list_in_place, members_of_a_set, deque_in_place,
    array_of_numpy, environment, context_variable, thread_s_own, tensor_s_attribute, distribution, strides_in_place,
    cpu_tensor, default_dtype, forward_pre_hook, forward_hook_of_a_module_without_parameters,
    forward_pre_hook_of_the_root, global_hook, tensor_hook, removed_hook, counted_by_a_class,
)  # fmt: skip
COMPILED = {global_number, class_attribute_of_a_module, class_attribute_of_an_object, closure, list_in_place, slots}


@pytest.fixture(autouse=True)
def restore() -> Iterator[Callable[[], None]]:
    """Give what puts everything back that a case may change."""
    before, scaled, python = dict(globals()), Scaled.scaled, helpers.scaled

    def again() -> None:
        globals().update({name: before[name] for name in ("SCALE", "KIND", "_double")})
        helpers.scaled, Scaled.scaled = python, scaled  # type: ignore[method-assign]
        torch.set_default_dtype(torch.float32)
        while HOOKS:
            HOOKS.pop().remove()

    yield again
    again()


def _compile(step: Callable[..., Any]) -> Any:
    return torch.compile(step, backend="jax")


def _eager(step: Callable[..., Any]) -> Any:
    return step


def _three(kept: Kept, compiler: Callable[..., Any]) -> list[Any]:
    """Return what the calls give: two, and two after the change."""
    step = compiler(kept.step)
    given = torch.tensor([1.0, 3.0], device="jax")
    out = [step(given).tolist() for _ in range(2)]
    kept.change()
    return [*out, *(step(given).tolist() for _ in range(2))]


@pytest.mark.parametrize("make", STATE, ids=lambda make: make.__name__)
def test_state_that_changes_between_calls_is_never_old(make: Callable[[], Kept], restore: Callable[[], None]) -> None:
    def fresh(compiler: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        out = _three(make(), compiler)
        restore()
        return out

    eager = fresh(_eager)
    if make is not counted_by_a_class:
        assert eager[1] != eager[2], "the change must matter"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fresh(jit) == eager
    if make in COMPILED:
        assert fresh(_compile) == eager


NEXT = iter(range(100))
COUNT = count()
RNG = np.random.default_rng(0)
OWN = random.Random(0)
DRAWS: dict[str, Callable[[Tensor], Any]] = {
    "random.random": lambda a: a * random.random(),
    "random.shuffle": lambda a: a * random.sample(range(1000), 2)[0],
    "a generator of Python's": lambda a: a * OWN.random(),
    "numpy.random": lambda a: a * float(np.random.rand()),
    "a generator of NumPy's": lambda a: a * float(RNG.random()),
    "os.urandom": lambda a: a * int.from_bytes(os.urandom(2), "little"),
    "next": lambda a: a * next(NEXT),
    "count": lambda a: a * next(COUNT),
    "torch.rand of the CPU": lambda a: a * torch.rand(2).to("jax"),
    "a generator of PyTorch's": lambda a: a * torch.rand(2, device="jax", generator=GENERATOR),
    "layer drop": lambda a: a if random.random() < 0.5 else a * random.random(),
}
GENERATOR = torch.Generator()


@pytest.mark.parametrize("name", DRAWS)
def test_what_draws_is_drawn_at_each_call_and_the_line_is_named(name: str) -> None:
    step, given = jit(DRAWS[name]), ones(2)
    with pytest.warns(UserWarning, match=r"jit runs .* eagerly, as .*test_jit_state\.py:\d+"):
        first = step(given)
    results = {tuple(out.tolist()) for out in (first, *(step(given) for _ in range(5)))}
    assert len(results) == 6 or (name == "layer drop" and len(results) > 2)


def test_what_is_drawn_before_the_trace_ends_is_not_lost() -> None:
    random.seed(0)
    expected = [random.random() for _ in range(3)]
    random.seed(0)
    step = jit(DRAWS["random.random"])
    with pytest.warns(UserWarning, match="eagerly"):
        assert [step(ones(1).double()).item() for _ in range(3)] == expected


@pytest.mark.parametrize("compiler", [jit, _compile, _eager])
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

    step = jit(lambda a: a * time.time())
    with pytest.warns(UserWarning, match=r"jit keeps what time\.time at .*test_jit_state\.py:\d+ gave"):
        step(ones(2))


SECOND = operator.itemgetter(1)


def test_members_that_are_read_only_are_left_alone() -> None:
    run = jit(lambda x: SECOND(x) * 2, fullgraph=True)
    x = torch.arange(2.0).to("jax")
    assert [run(x).item(), run(x).item(), run.compiles] == [2.0, 2.0, 1]
