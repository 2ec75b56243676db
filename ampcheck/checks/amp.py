"""What a scenario is given: regions of one device type, its tensors, and comparisons with what is promised.

A reproduction is made of this source: `Amp` as it is here prints what it compares, and needs torch alone. A run gives a
scenario an `ampcheck.checks.scenario.DeviceAmp` instead, which asks the device under test and notes differences.
"""

import random
import textwrap
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, NoReturn, TypeVar

import torch

from ampcheck.checks.comparisons import bitwise, output_dtypes, same_error
from ampcheck.compilers.source import define
from ampcheck.errors import one_line
from ampcheck.observe.closeness import relative_distance
from ampcheck.observe.isolation import depth, in_thread, interleave
from ampcheck.observe.recorder import CALLERS, Casting, Observation, Recorder, attempt, observe, replay, tensors
from ampcheck.register.torch_private import OpOverload
from ampcheck.spec.casting import APPENDED
from ampcheck.spec.policies import KEYS
from ampcheck.spec.torch_dtypes import name_of

T = TypeVar("T")


class Amp:
    """One device type, one of its lower-precision dtypes ("low" in docstrings), and what a scenario compares there.

    `region()` is `torch.autocast` of the two; the `assert_…` methods compare what happens with what is promised. In the
    suite `jit` each case has a compiler, the way a program is compiled (`ampcheck/spec/case.py`), and
    `compiled(compiler, program, inputs)` compiles. `default` is the dtype that a region takes when it is given none.
    """

    name = ""
    key = ""
    has_values = True
    policies: Mapping[str, str] = {}
    promises: Mapping[tuple[object, ...], Any] = {}
    unjudged = ""
    """Why what the scenario did could not be compared with anything, where that is so."""

    def __init__(self, type: str, dtype: torch.dtype, default: torch.dtype) -> None:
        self.type, self.dtype, self.default = type, dtype, default
        self.made = 0
        self.differences: list[str] = []
        self.looked_at = 0
        """How many things the scenario compared; one that compared none has shown nothing."""

    @property
    def other(self) -> torch.dtype:
        """Return the other lower precision."""
        return torch.float16 if self.dtype == torch.bfloat16 else torch.bfloat16

    @property
    def elsewhere(self) -> str:
        """Return another device type: the CPU, where this is not that one; its tensors can be made beside any."""
        return "xpu" if self.type == "cpu" else "cpu"

    def autocast(self, dtype: torch.dtype | None = None, **options: Any) -> Any:
        """Return a region on the device, not yet entered; `options` are `enabled` and `cache_enabled`."""
        return torch.autocast(self.type, dtype=dtype, **options)

    def supports(self, dtype: torch.dtype) -> bool:
        """Return whether a region may have a dtype: PyTorch warns of any other one, and disables the region."""
        listed = getattr(getattr(torch, self.type, None), "get_amp_supported_dtype", None)
        return self.type == "cuda" or dtype in (listed() if listed else (torch.bfloat16, torch.float16))

    def region(self, dtype: torch.dtype | None = None, **options: Any) -> Any:
        """Return a region on the device, not yet entered; in the scenario's lower precision unless told otherwise."""
        return self.autocast(dtype or self.dtype, **options)

    def rand(self, *shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False) -> torch.Tensor:
        """Return a fresh tensor on the device, with other values each time, from 0.05 to 0.95."""
        self.made += 1
        if self.has_values:
            generator = torch.Generator().manual_seed(zlib.crc32(repr((shape, "unit", self.made, 0)).encode()))
            x = 0.05 + 0.9 * torch.rand(shape, dtype=torch.float64, generator=generator)
            return x.to(dtype).to(self.type).requires_grad_(requires_grad)
        return torch.empty(shape, dtype=dtype, device=self.type).requires_grad_(requires_grad)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor's values on the CPU."""
        return tensor.detach().cpu()

    def values(self, tensor: torch.Tensor | None) -> list[Any]:
        """Return a tensor's values, on a device that has any; none where there is no tensor."""
        found: list[Any] = [] if tensor is None else self.host(tensor).tolist()
        return found

    def seed(self) -> None:
        """Reset the random state that ops on the device draw from."""
        if self.has_values:
            torch.manual_seed(0)

    def module(self, make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
        """Return a module on the device, its parameters float32, fixed, and the same values each time."""
        self.seed()
        made = make().requires_grad_(False)
        if self.has_values:
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

    def probe(self) -> torch.dtype:
        """Return the dtype a product of two float32 matrices runs in now: float32 where autocast is off."""
        return torch.mm(self.rand(2, 2), self.rand(2, 2)).dtype

    def state(self) -> tuple[bool, torch.dtype, bool]:
        """Return enabled, dtype and cache_enabled of the device type, as torch reports them."""
        of_type = torch.is_autocast_enabled(self.type), torch.get_autocast_dtype(self.type)
        return *of_type, torch.is_autocast_cache_enabled()

    def depth(self) -> int:
        """Return how many regions this thread is inside, whatever their device type."""
        return depth()

    def activate(self) -> AbstractContextManager[object]:
        """Return the context that each new thread enters to use the device."""
        return nullcontext()

    def thread(self, call: Callable[[], T]) -> T:
        """Return the value of a call made in a new thread that has entered the device, or raise what it raises."""
        return in_thread(call, self.activate)

    def interleave(self, *workers: Callable[[], Iterator[None]]) -> None:
        """Run generator functions in new threads, in turns: each up to its next `yield`, then the next one."""
        interleave(workers, self.activate)

    def observe(self, call: Callable[[], Any], *inputs: torch.Tensor) -> Observation:
        """Run a call inside the current region and record its kernels and casts."""
        return observe(call, self.type, self.policies, inputs)

    def casts(self, call: Callable[[], Any], tensor: torch.Tensor) -> int:
        """Return how often a tensor is cast while a call runs in the current region, without gradients."""
        return sum(cast.source is not None for cast in self.observe(call, tensor).casts)

    def received(self, overload: str, call: Callable[[], Any]) -> tuple[str, ...] | None:
        """Return the dtypes an overload's kernel received in a call in the current region; None if it never ran."""
        kernel = self.observe(call).of(overload)
        return tuple(leaf.got for leaf in kernel.leaves) if kernel else None

    def copies(self, call: Callable[[], Any], tensor: torch.Tensor | None = None) -> list[weakref.ref[torch.Tensor]]:
        """Return weak references to a call's casts of a tensor, or of any, gradients recorded as usual."""
        made: list[weakref.ref[torch.Tensor]] = []
        followed = None if tensor is None else weakref.ref(tensor)
        # Inference mode casts with `to.dtype`, everything else with `_to_copy`.
        casts = (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype)

        def run(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            out = func(*args, **kwargs)
            if func in casts and (followed is None or args[0] is followed()) and args[0].dtype != out.dtype:
                made.append(weakref.ref(out))
            return out

        with Recorder(run):
            call()
        return made

    def op_info(self, name: str) -> Any:
        """Return an op of PyTorch's own op database; None where this torch has none of the name."""
        from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415  # takes seconds

        return next((info for info in op_db if info.full_name == name), None)

    def op_samples(self, info: Any, dtype: torch.dtype, count: int, *, grad: bool = False) -> list[Any]:
        """Return the first samples of an op of the database, the same ones at each call; see `op_info`."""
        state = random.getstate()
        random.seed(0)
        torch.manual_seed(0)
        made = list(islice(info.sample_inputs_func(info, self.type, dtype, grad), count))
        random.setstate(state)
        return made

    def program(self, body: str) -> Callable[..., Any]:
        """Return the function `program` of a source; TYPE and DTYPE are the device type and the lower precision.

        TorchScript reads sources, and takes nothing from around a function.
        """
        return define(textwrap.dedent(body).replace("DTYPE", str(self.dtype)).replace("TYPE", repr(self.type)))

    def compiled(self, compiler: str, function: Callable[..., Any], *inputs: Any, **options: Any) -> Callable[..., Any]:
        """Return a function compiled for inputs such as these; `options` are those of `torch.compile`."""
        raise NotImplementedError

    def compiled_with_matrix(
        self, compiler: str, function: Callable[..., Any], **options: bool
    ) -> tuple[torch.Tensor, Callable[..., Any]]:
        """Return a matrix, and the function compiled for such a one; see `compiled`."""
        x = self.rand(2, 2)
        return x, self.compiled(compiler, function, x, **options)

    def j2t(self, fn: Callable[..., Any], cast_inputs: torch.dtype | None = None) -> Callable[..., Any]:
        """Return a JAX function as a PyTorch one, made by the device."""
        raise NotImplementedError

    def casting(
        self,
        overload: str,
        given: Sequence[torch.dtype | None],
        dtype: torch.dtype | None = None,
        *,
        enabled: bool = True,
        dtype_given: bool = False,
    ) -> Casting:
        """Return what autocast must make of a call, by the policies that PyTorch documents.

        Args:
            overload: the op that is called.
            given: the dtype of each tensor argument, None for one of another device type.
            dtype: of the region, by default the scenario's.
            enabled: whether the region is enabled.
            dtype_given: whether the call has a `dtype=`.
        """
        return Casting(*self.promises["casting", overload, tuple(given), dtype or self.dtype, enabled, dtype_given])

    def assert_cast(
        self, name: str, call: Callable[[], object], *, runs: bool = False
    ) -> tuple[list[torch.Tensor], bool]:
        """Note where a call in a region differs from the same call with explicit casts.

        Returns what it gives in the region, and whether an op with a policy ran. `runs`: whether it has to; else the
        call may raise what it raises with explicit casts.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a module's advice on how to run faster
            self.seed()
            wanted, kernels = replay(call, self.type, self.policies, self.casting)
            self.seed()
            with self.region():
                seen = self.observe(call)
            native, error = seen.outputs, seen.error
            if self.has_values:  # once more as a user runs it
                self.seed()
                with self.region():
                    out, error = attempt(call)
                native = list(tensors(out))
        ran = [(k.overload, tuple(leaf.got for leaf in k.leaves)) for k in seen.kernels if k.overload in self.policies]
        # Kernels of quantized tensors, which no policy casts, call ops of them.
        quantized = ("qint", "quint")
        ran = [one for one in ran if one in kernels or not one[1] or not all(x.startswith(quantized) for x in one[1])]
        if not any(k.overload in CALLERS for k in seen.kernels):  # autocast is off in those while they are watched
            self.assert_equal(f"ops with a policy in {name}, with the dtypes they received", ran, kernels)
        self.note(f"what {name} raises", same_error(error, wanted.error, name))
        if error is not None and not self.differences and runs:
            self.refused(error, name)
        if error is None and wanted.error is None:
            dtypes = output_dtypes(native, [name_of(t.dtype) for t in wanted.outputs], name)
            self.note(f"dtypes of the outputs of {name}", dtypes)
            if self.has_values:
                reference = [self.host(t) for t in wanted.outputs]
                differences = bitwise([self.host(t) for t in native], reference, name)
                if differences and self.key not in KEYS:
                    # Without gradients, as here, a backend may run a composite op whole and round elsewhere.
                    differences = bitwise([self.host(t) for t in seen.outputs], reference, name)
                self.note(f"values of the outputs of {name}", differences)
        if not ran and not self.has_values and error is not None and "unsafe to autocast" not in str(error):
            self.note(name, [f"{name} ran no op with a policy and raised {one_line(error)}"])
        decided = [k for k in seen.kernels if k.overload in self.policies or k.overload in APPENDED.values()]
        return native, bool(decided)

    def assert_close(self, what: str, got: torch.Tensor | None, want: torch.Tensor, tolerance: float = 1e-5) -> None:
        """Note a tensor that is absent, or differs from another in shape, dtype or, relative to 1 + |want|, value."""
        if got is None:
            self.check(False, what, "there is none")
            return
        host, want = self.host(got.detach()), self.host(want.detach())
        if host.shape != want.shape or host.dtype != want.dtype:
            shapes = f"{list(host.shape)} {host.dtype}; expected {list(want.shape)} {want.dtype}"
            self.check(False, what, f"got {shapes}")
            return
        far = relative_distance(host, want)
        self.check(far <= tolerance, what, f"differs by {far:.2g}; at most {tolerance:.2g} is expected")

    def assert_identical(self, what: str, got: torch.Tensor | None, want: torch.Tensor | None) -> None:
        """Note a tensor that differs from another one in shape, dtype or any value. None is no tensor."""
        if got is None or want is None:
            self.assert_equal(f"whether there is a {what}", got is not None, want is not None)
        else:
            self.assert_close(what, got, want, 0.0)

    def assert_equal(self, what: str, got: object, want: object) -> None:
        """Note a difference between what was seen and what PyTorch promises."""
        shown = [str(value) if isinstance(value, torch.dtype) else repr(value) for value in (got, want)]
        self.check(got == want, what, f"got {shown[0]}; expected {shown[1]}")

    def assert_received(self, overload: str, call: Callable[[], Any], want: tuple[str, ...], of: str = "") -> None:
        """Note where an overload's kernel receives other dtypes in a call in the current region, which is `of` what."""
        self.assert_equal(f"dtypes {overload} receives{of}", self.received(overload, call), want)

    def assert_state(self, when: str, want: tuple[bool, torch.dtype, bool], depth: int | None = None) -> None:
        """Note where the state, the dtype in which it has a product run, or the nesting depth is another one."""
        self.assert_equal(f"state {when}", self.state(), want)
        self.assert_equal(f"dtype a product runs in {when}", self.probe(), want[1] if want[0] else torch.float32)
        if depth is not None:
            self.assert_equal(f"nesting depth {when}", self.depth(), depth)

    def outcome(self, call: Callable[..., T], *given: object, whole: bool = False) -> T | str:
        """Return what a call gives, or the class of what it raises with the first line of the text, or all of it."""
        try:
            return call(*given)
        except Exception as error:  # the call under test may raise anything
            text = str(error) if whole else str(error).partition("\n")[0]
            return f"{type(error).__name__}: {text}"

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

    def check(self, right: bool, what: str, found: str, error: Exception | None = None) -> None:
        """Print what was found; a run notes it where it is not right. The scenario goes on."""
        print("ok  " if right else "FAIL", what, "|", found)
        self.differences += [] if right else [what]

    def note(self, what: str, differences: Sequence[str]) -> None:
        """Print sentences about differences, each of which says what it is about, as `check` does; none is right."""
        print("\n".join(f"FAIL {difference}" for difference in differences) or f"ok   {what}")
        self.differences += differences

    def note_error(self, what: str, error: Exception) -> None:
        """Note an exception that a call raises where it must not."""
        self.check(False, what, f"raised {one_line(error)}", error)

    def unsupported(self, reason: str) -> NoReturn:
        """End the scenario: the device cannot do what it is about."""
        raise SystemExit(reason)

    def refused(self, error: Exception, name: str) -> NoReturn:
        """End the scenario over an exception that is raised without autocast, too."""
        raise SystemExit(f"{name} raised {error}; it raises that without autocast, too")
