"""Scenarios: small programs about regions and state, written in plain torch with the help of `amp`.

    pytestmark = pytest.mark.rule("context")

    @scenario()
    def test_exit_restores(amp):
        with amp.region():
            pass
        amp.assert_equal("is autocast enabled after the region", amp.state()[0], False)

Each scenario runs on every device and in each of its lower precisions.
"""

from __future__ import annotations

import textwrap
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import pytest
import torch

from ampcheck.devices.base import Device
from ampcheck.errors import Broken, CheckFailure, Difference, HarnessError, Unsupported, one_line
from ampcheck.observe import isolation
from ampcheck.observe.dispatcher import lacks_kernel
from ampcheck.observe.recorder import Observation
from ampcheck.observe.threads import in_thread, interleave
from ampcheck.observe.torch_private import TorchDispatchMode
from ampcheck.samples.describe import TensorArg
from ampcheck.spec.torch_dtypes import DTYPES, name_of

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")


def scenario(
    *, types: Sequence[str] = (), dtypes: str = "all", values: bool = False, since: str = ""
) -> Callable[[F], F]:
    """Mark a test function with a parameter `amp` as a scenario.

    Args:
        types: the device types it makes sense for; none means every one.
        dtypes: "all" runs it in each lower precision of the device, "default" in the one `torch.autocast` defaults to.
        values: whether it needs a device whose tensors hold values.
        since: the torch minor version that made the promise, where that is newer than the oldest one supported.
    """
    if dtypes not in ("all", "default"):
        raise TypeError(f'dtypes is {dtypes!r}; it is "all" or "default"')

    def mark(function: F) -> F:
        marked: F = pytest.mark.scenario(types=tuple(types), dtypes=dtypes, values=values, since=since)(function)
        return marked

    return mark


class Amp:
    """The device of a scenario, one of its lower-precision dtypes ("low" in docstrings), and the differences found.

    `region()` is `torch.autocast` of the two; the `assert_…` methods compare what happens with what is promised. In the
    suite `jit` each case has a compiler, the way a program is compiled (`ampcheck/spec/compilers.py`), and
    `compiled(compiler, program, inputs)` compiles.
    """

    def __init__(self, device: Device, dtype: str) -> None:
        self.device = device
        self.type = device.type
        self.dtype = DTYPES[dtype]
        self.differences: list[str] = []
        self.looked_at = 0
        """How many things the scenario compared; one that compared none has shown nothing."""
        self.unjudged = ""
        """Why what the scenario did could not be compared with anything, where that is so."""
        self.script = ""
        """How to reproduce what was found in plain torch, where that is not the scenario's own source."""
        self._made = 0

    @property
    def other(self) -> torch.dtype:
        """Return the other lower precision."""
        return torch.float16 if self.dtype == torch.bfloat16 else torch.bfloat16

    @property
    def default(self) -> torch.dtype:
        """Return the dtype a region takes when it is given none."""
        return DTYPES[self.device.default_amp]

    def region(
        self, dtype: torch.dtype | None = None, *, enabled: bool = True, cache_enabled: bool | None = None
    ) -> Any:
        """Return a region on the device, not yet entered; in the scenario's lower precision unless told otherwise."""
        return self.device.autocast(name_of(dtype or self.dtype), enabled=enabled, cache_enabled=cache_enabled)

    def rand(self, *shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False) -> torch.Tensor:
        """Return a fresh tensor on the device, with other values each time."""
        self._made += 1
        arg = TensorArg(shape, None, "unit", seed=self._made)
        if self.device.has_values:
            made = self.device.tensor(arg, name_of(dtype), 0)
        else:  # a fake tensor of one description is shared; a scenario may change its own
            made = self.device.tensor(arg, name_of(dtype), 0).clone()
        return made.requires_grad_(requires_grad)

    def probe(self) -> torch.dtype:
        """Return the dtype a product of two float32 matrices runs in now: float32 where autocast is off."""
        return torch.mm(self.rand(2, 2), self.rand(2, 2)).dtype

    def state(self) -> tuple[bool, torch.dtype, bool]:
        """Return enabled, dtype and cache_enabled of the device type, as torch reports them."""
        return (
            torch.is_autocast_enabled(self.type),
            torch.get_autocast_dtype(self.type),
            torch.is_autocast_cache_enabled(),
        )

    def depth(self) -> int:
        """Return how many regions this thread is inside, whatever their device type."""
        return isolation.depth()

    def thread(self, call: Callable[[], T]) -> T:
        """Return the value of a call made in a new thread that has entered the device, or raise what it raises."""
        return in_thread(call, self.device.activate)

    def interleave(self, *workers: Callable[[], Iterator[None]]) -> None:
        """Run generator functions in new threads, in turns: each up to its next `yield`, then the next one."""
        interleave(workers, self.device.activate)

    def observe(self, call: Callable[[], Any], *inputs: torch.Tensor) -> Observation:
        """Run a call inside the current region and record its kernels and casts."""
        return self.device.observe(call, self.device.policies(), inputs)

    def casts(self, call: Callable[[], Any], tensor: torch.Tensor) -> int:
        """Return how often a tensor is cast while a call runs in the current region, without gradients."""
        return sum(cast.source is not None for cast in self.observe(call, tensor).casts)

    def received(self, overload: str, call: Callable[[], Any]) -> tuple[str, ...] | None:
        """Return the dtypes an overload's kernel received in a call in the current region; None if it never ran."""
        kernel = self.observe(call).of(overload)
        return tuple(leaf.got for leaf in kernel.leaves) if kernel else None

    def copies(self, call: Callable[[], Any], tensor: torch.Tensor | None = None) -> list[weakref.ref[torch.Tensor]]:
        """Return weak references to a call's casts of a tensor, or of any, gradients recorded as usual."""
        if not self.device.observes_composite_ops:
            raise Unsupported(f"copies that {self.device.name} casts cannot be followed while gradients are recorded")
        copier = _Copies(tensor)
        with copier:
            call()
        return copier.made

    def compiled(self, compiler: str, function: Callable[..., Any], *inputs: Any, **options: Any) -> Callable[..., Any]:
        """Return a function compiled for inputs such as these; `options` are those of `torch.compile`."""
        from ampcheck.compilers.kinds import COMPILERS

        compiled: Callable[..., Any] = COMPILERS[compiler].make(function, inputs, **options).call
        return compiled

    def program(self, body: str) -> Callable[..., Any]:
        """Return the function `program` of a source; TYPE and DTYPE are the device type and the lower precision.

        TorchScript reads sources, and takes nothing from around a function.
        """
        from ampcheck.compilers.source import define

        return define(textwrap.dedent(body).replace("DTYPE", str(self.dtype)).replace("TYPE", repr(self.type)))

    def j2t(self, fn: Callable[..., Any], cast_inputs: torch.dtype | None = None) -> Callable[..., Any]:
        """Return a JAX function as a PyTorch one, made by the device."""
        return self.device.j2t(fn, cast_inputs)

    def assert_close(self, what: str, got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-5) -> None:
        """Note a device tensor that differs from one on the CPU in shape, dtype or, relative to 1 + |want|, value."""
        host = self.device.host(got.detach())
        if host.shape != want.shape or host.dtype != want.dtype:
            shapes = f"{list(host.shape)} {host.dtype}; expected {list(want.shape)} {want.dtype}"
            self.check(False, what, f"got {shapes}")
            return
        far = ((host - want).abs() / (1 + want.abs())).max().item() if host.numel() else 0.0
        self.check(far <= tolerance, what, f"differs by {far:.2g}; at most {tolerance:.2g} is expected")

    def assert_identical(self, what: str, got: torch.Tensor | None, want: torch.Tensor | None) -> None:
        """Note a device tensor that differs from another one in shape, dtype or any value. None is no tensor."""
        if got is None or want is None:
            self.assert_equal(f"whether there is a {what}", got is not None, want is not None)
        else:
            self.assert_close(what, got, self.device.host(want.detach()), 0.0)

    def module(self, make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
        """Return a module on the device, its parameters float32, fixed, and the same values each time."""
        self.device.seed()
        made = make().requires_grad_(False)
        if self.device.has_values:
            return made.to(self.type)
        for part in made.modules():  # a fake tensor cannot be moved, so each is made anew
            for held in (part._parameters, part._buffers):
                for name, tensor in held.items():
                    if tensor is not None:
                        moved: Any = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.type)
                        held[name] = moved
            if isinstance(part, torch.nn.RNNBase):
                part._flat_weights = [getattr(part, name) for name in part._flat_weights_names]
        return made

    def values(self, tensor: torch.Tensor) -> list[Any]:
        """Return a tensor's values, on a device that has any."""
        found: list[Any] = self.device.host(tensor).tolist()
        return found

    def check(self, right: bool, what: str, found: str, error: Exception | None = None) -> None:
        """Note what was found where it is not right; the scenario goes on."""
        self.looked_at += 1
        if not right:
            self.differences.append(Difference(f"{what}: {found}", error) if error else f"{what}: {found}")

    def assert_equal(self, what: str, got: object, want: object) -> None:
        """Note a difference between what was seen and what PyTorch promises."""
        shown = [str(value) if isinstance(value, torch.dtype) else repr(value) for value in (got, want)]
        self.check(got == want, what, f"got {shown[0]}; expected {shown[1]}")

    def assert_raises(self, what: str, kind: type[BaseException], text: str, call: Callable[[], object]) -> None:
        """Note a call that does not raise `kind` with `text` in its message."""
        try:
            call()
        except Exception as error:  # another error than the promised one is the finding
            right = isinstance(error, kind) and text in str(error)
            wanted = f"it to say {text!r}" if isinstance(error, kind) else kind.__name__
            self.check(right, what, f"raised {type(error).__name__} {str(error)!r}; expected {wanted}", error)
        else:
            self.check(False, what, f"raised nothing; expected {kind.__name__} saying {text!r}")

    def warned(self, call: Callable[[], T]) -> tuple[T, list[tuple[type[Warning], str]]]:
        """Return the value of a call, and the class and text of each warning that it gave."""
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            out = call()
        return out, [(warning.category, str(warning.message)) for warning in seen]

    def assert_warns(self, what: str, kind: type[Warning], text: str, call: Callable[[], T]) -> T:
        """Note a call that gives no warning of `kind` with `text` in it. Returns what the call returns."""
        out, seen = self.warned(call)
        right = any(issubclass(category, kind) and text in said for category, said in seen)
        found = "; ".join(f"{category.__name__} {said!r}" for category, said in seen) or "nothing"
        self.check(right, what, f"warned of {found}; expected {kind.__name__} saying {text!r}")
        return out

    def assert_no_warning(self, what: str, call: Callable[[], T]) -> T:
        """Note a call that gives a warning. Returns what the call returns."""
        out, seen = self.warned(call)
        found = "; ".join(f"{category.__name__} {said!r}" for category, said in seen) or "nothing"
        self.check(not seen, what, f"warned of {found}; expected no warning")
        return out

    def unsupported(self, reason: str) -> NoReturn:
        """End the scenario: the device cannot do what it is about. Raises Unsupported."""
        raise Unsupported(reason)

    def refused(self, error: Exception, name: str) -> NoReturn:
        """End the scenario over an exception that is raised without autocast, too.

        Raises Unsupported where the dispatcher has no kernel or the device declares such texts, else Broken.
        """
        if not self.device.has_values or lacks_kernel(error) or self.device.refuses(error):
            raise Unsupported(one_line(error))
        raise Broken([f"{name} raised {one_line(error)}; it raises that without autocast, too"], error)

    def finish(self) -> None:
        """Raise CheckFailure with every difference noted.

        Where nothing was looked at, raise Unsupported if the scenario says why, else HarnessError.
        """
        if self.differences:
            raise CheckFailure(self.differences)
        if not self.looked_at and self.unjudged:
            raise Unsupported(self.unjudged)
        if not self.looked_at:
            raise HarnessError("the scenario compared nothing, so that it ended shows nothing")


class _Copies(TorchDispatchMode):
    """Collects casts, of one tensor or of any.

    Inference mode reaches it with `to.dtype`, everything else with `_to_copy`.
    """

    def __init__(self, tensor: torch.Tensor | None) -> None:
        super().__init__()
        self.made: list[weakref.ref[torch.Tensor]] = []
        self._tensor: Any = tensor if tensor is None else weakref.ref(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out: Any = func(*args, **(kwargs or {}))
        cast = func in (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype)
        if cast and (self._tensor is None or args[0] is self._tensor()) and args[0].dtype != out.dtype:
            self.made.append(weakref.ref(out))
        return out
