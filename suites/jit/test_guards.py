"""Rule guards: a compiled function acts by the autocast settings of each call, and compiles anew for new ones alone.

The promise, its sources, and what is compared: docs/coverage/guards.md.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from packaging.version import Version

from ampcheck.runner.suite import Amp, Product, scenario

pytestmark = pytest.mark.rule("guards")

_AROUND = ("off", "on", "region")
_SETTINGS = ("enabled", "dtype", "kept", "wide", "enabled_as_of_old", "dtype_as_of_old")

ON_THE_CPU = Product(
    {
        "compiler": ("dynamo", "aot", "inductor"),
        "query": ("nothing", *_SETTINGS, "region"),
        "setter": (*_SETTINGS, "enabled_elsewhere", "dtype_elsewhere"),
        "around": _AROUND,
    }
)
ON_CUDA = Product(
    {
        "compiler": ("dynamo", "aot"),
        "query": ("dtype", "enabled_as_of_old", "dtype_as_of_old"),
        "setter": ("dtype", "enabled_as_of_old", "dtype_as_of_old"),
        "around": _AROUND,
    }
)
ON_JAX = Product(
    {
        "compiler": ("dynamo", "jaxcompile", "jaxjit"),
        "query": ("nothing", "enabled", "dtype", "kept", "region"),
        "setter": ("enabled", "dtype", "kept"),
        "around": _AROUND,
    }
)

_OF_OLD: dict[str, tuple[Any, Any, Any, Any]] = {
    "cpu": (
        torch.is_autocast_cpu_enabled,
        torch.get_autocast_cpu_dtype,
        torch.set_autocast_cpu_enabled,
        torch.set_autocast_cpu_dtype,
    ),
    "cuda": (
        torch.is_autocast_enabled,
        torch.get_autocast_gpu_dtype,
        torch.set_autocast_enabled,
        torch.set_autocast_gpu_dtype,
    ),
}
"""The functions for one device type each: whether autocast is on, its dtype, and what sets them."""


class _Counting:
    """A backend of torch.compile that counts the graphs it is given."""

    def __init__(self, backend: str) -> None:
        self.backend: Any = torch._dynamo.lookup_backend(backend)
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return self.backend(graph, inputs)


def _asking(amp: Amp, query: str) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
    """Return a function that gives a product, and what tells the answer to its question by its dtype."""
    kind = amp.type
    is_enabled, get_dtype, _, _ = _OF_OLD.get(kind, (None,) * 4)

    def region(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.mm(x, x)
        with torch.autocast(kind):
            return y, torch.mm(x, x)

    return {
        "nothing": lambda x: (torch.mm(x, x),),
        "enabled": lambda x: (torch.mm(x, x), x.double() if torch.is_autocast_enabled(kind) else x.float()),
        "dtype": lambda x: (torch.mm(x, x), x.to(torch.get_autocast_dtype(kind))),
        "kept": lambda x: (torch.mm(x, x), x.double() if torch.is_autocast_cache_enabled() else x.float()),
        "wide": lambda x: (torch.mm(x, x), torch.ones(2), torch.rand(2)),
        "enabled_as_of_old": lambda x: (torch.mm(x, x), x.double() if is_enabled() else x.float()),
        "dtype_as_of_old": lambda x: (torch.mm(x, x), x.to(get_dtype())),
        "region": region,
    }[query]


class _Settings:
    """The settings as a case changes them, and what a function gives under them."""

    def __init__(self, amp: Amp, query: str, around: str) -> None:
        self.amp = amp
        self.query = query.removesuffix("_as_of_old")
        self.values: dict[str, Any] = {
            "enabled": around != "off",
            "dtype": amp.dtype,
            "kept": True,
            "wide": False,
            "enabled_elsewhere": False,
        }
        self.seen: set[tuple[object, ...]] = set()

    def change(self, setter: str) -> None:
        amp, name = self.amp, setter.removesuffix("_as_of_old")
        other = "xpu" if amp.type == "cpu" else "cpu"
        if name == "dtype_elsewhere":
            one, two = torch.bfloat16, torch.float16
            torch.set_autocast_dtype(other, two if torch.get_autocast_dtype(other) == one else one)
            return
        was = self.values[name]
        self.values[name] = now = (amp.other if was == amp.dtype else amp.dtype) if name == "dtype" else not was
        if setter != name:
            _OF_OLD[amp.type][2 if name == "enabled" else 3](now)
        elif name == "enabled":
            torch.set_autocast_enabled(amp.type, now)
        elif name == "dtype":
            torch.set_autocast_dtype(amp.type, now)
        elif name == "kept":
            torch.set_autocast_cache_enabled(now)
        elif name == "wide":
            torch.set_default_dtype(torch.float64 if now else torch.float32)
        else:
            torch.set_autocast_enabled(other, now)

    def wanted(self) -> list[torch.dtype]:
        """Return the dtypes that the function gives under the settings."""
        low = self.values["dtype"]
        product = low if self.values["enabled"] else torch.float32
        if self.query == "nothing":
            return [product]
        if self.query in ("dtype", "region"):
            return [product, low]
        asked = torch.float64 if self.values[self.query] else torch.float32
        return [product, asked, asked] if self.query == "wide" else [product, asked]

    def new(self) -> bool:
        """Return whether the function has to be compiled for the settings, and take them as seen."""
        asked = self.values["enabled"] or self.query in ("dtype", "region")
        key = tuple(value for name, value in self.values.items() if name != "dtype" or asked)
        is_new = key not in self.seen
        self.seen.add(key)
        return is_new


def _check(amp: Amp, compiler: str, query: str, setter: str, around: str) -> None:
    counting = _Counting({"dynamo": "eager", "aot": "aot_eager"}.get(compiler, compiler)) if amp.type != "jax" else None
    settings, x = _Settings(amp, query, around), amp.rand(2, 2)
    if counting:
        compiled: Any = torch.compile(_asking(amp, query), backend=counting)
    else:
        compiled = amp.compiled(compiler, _asking(amp, query), x, fullgraph=False)

    def call(when: str) -> None:
        before, is_new = counting.graphs if counting else 0, settings.new()
        amp.assert_equal(f"dtypes {when}", [y.dtype for y in compiled(x)], settings.wanted())
        if counting and not is_new:
            got = counting.graphs - before
            amp.assert_equal(f"graphs compiled {when}, for settings that were there before", got, 0)

    def calls() -> None:
        call("at first")
        if counting:
            amp.check(counting.graphs > 0, "graphs compiled at first", "none")
        call("again")
        for turn in ("once", "twice"):
            settings.change(setter)
            call(f"with {setter} changed {turn}")
            call(f"with {setter} changed {turn}, again")
            settings.change(setter)
            call(f"with {setter} changed back {turn}")

    try:
        if around == "region":
            with amp.region():
                calls()
            amp.assert_equal("whether autocast is on after the region", amp.state()[0], False)
        else:
            torch.set_autocast_enabled(amp.type, around == "on")
            calls()
    finally:
        torch.set_default_dtype(torch.float32)


@scenario(ON_THE_CPU, types=("cpu",), dtypes="default")
def test_set_and_asked(amp: Amp, compiler: str, query: str, setter: str, around: str) -> None:
    """A function asks for a setting that changes between its calls, in no region, in one, or with autocast set on."""
    _check(amp, compiler, query, setter, around)


@scenario(ON_CUDA, types=("cuda",), dtypes="default")
def test_set_and_asked_of_the_gpu(amp: Amp, compiler: str, query: str, setter: str, around: str) -> None:
    """The functions without a device type, and those for the GPU, are guarded as those for the CPU are.

    Since torch 2.14 those without a device type speak of the accelerator (pytorch#191916); where that is another one,
    the functions with a device type are asked.
    """
    accelerator = torch.accelerator.current_accelerator() if Version(torch.__version__) >= Version("2.14") else None
    if accelerator is not None and accelerator.type != amp.type:
        query, setter = query.replace("enabled_as_of_old", "enabled"), setter.replace("enabled_as_of_old", "enabled")
    _check(amp, compiler, query, setter, around)


@scenario(ON_JAX, types=("jax",), dtypes="default")
def test_set_and_asked_on_xla(amp: Amp, compiler: str, query: str, setter: str, around: str) -> None:
    """A program of XLA acts by the settings of each call (docs/jax_device.md)."""
    _check(amp, compiler, query, setter, around)
