"""Kernels of a step under observation: where values stop being finite, what is rounded, what ran in which dtype."""

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from ampcheck.observe.closeness import CHOSEN, FLOATS, bounds, nonfinite
from ampcheck.observe.recorder import CASTS, Recorder, overload_name, tensors
from ampcheck.register.torch_private import OpOverload
from ampcheck.spec import policies
from ampcheck.spec.torch_dtypes import name_of
from ampcheck.tools.doctor.findings import Findings
from ampcheck.tools.torch_private import current_node, restored_state, sequence_number
from ampcheck.tools.trace.sources import Sources, described

Place = tuple[str, str]
"""The path of a module and a line of the program."""

LOW = (torch.float16, torch.bfloat16)
MOST_KERNELS = 50_000
"""How many kernels of a step are looked at. A program without an optimizer is one step, however long it runs."""
EXACT = {torch.float16: 2048, torch.bfloat16: 256}
"""Up to which integer a lower precision holds each one."""


def _listed(*wanted: str) -> frozenset[str]:
    """Return the names of ops that CUDA's list has under some policies: of what loses accuracy on any device."""
    listed = policies.table("AutocastCUDA", policies.closest(torch.__version__))
    return frozenset(name.partition(".")[0] for name, policy in listed.items() if policy in wanted)


# The kernels that listed ops end in are added.
PRODUCTS = _listed("downcast") | {"dot", "_convolution", "mkldnn_rnn_layer"}
_SENSITIVE = (_listed("upcast", "optdtype", "banned") | {"_softmax"}) - {"sum", "mean", "cumsum"}
_LOSSES = ("_log_softmax", "binary_cross_entropy", "binary_cross_entropy_with_logits")
# Inference mode hands composite ops over whole.
_CASTS = frozenset(name.partition(".")[0] for name in CASTS)
_AVERAGES = frozenset(("lerp", "lerp_", "_foreach_lerp_", "mul", "mul_", "_foreach_mul_"))
_CLAMPS = frozenset(("clamp", "clamp_", "clip", "clip_", "clamp_min_", "clamp_max_"))
_NORMS = frozenset(("linalg_vector_norm", "norm", "_foreach_norm", "pow", "square"))
_FACTORS = frozenset(("mul", "mul_", "div", "div_", "_foreach_mul_", "_foreach_div_"))
_LIMITS = dict.fromkeys(_CLAMPS, "clamp") | dict.fromkeys(_NORMS, "norm") | dict.fromkeys(_FACTORS, "factor")
"""Kernels that may be part of a clipping by hand."""
_SUMS = frozenset(("add", "add_", "cumsum", "mean", "mul", "mul_", "pow", "prod", "square", "sub", "sum"))
_UNSET = frozenset(
    ["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "resize_", "set_"]
)


@dataclass(frozen=True, slots=True)
class NonFinite:
    """A kernel that made the first values that are not finite out of finite ones, or met them.

    `met`: they came in with an argument that no kernel of the step made. `low`: the lowest finite value any argument
    has, numbers included. `zero`: whether an argument holds a zero. `op` is the overload's name without its variant.
    """

    op: str
    dtype: torch.dtype
    what: str
    given: str
    low: float
    zero: bool
    met: str
    region: str
    place: Place
    backward: bool

    @property
    def hidden(self) -> bool:
        """Return whether it is wrong also where the loss is finite: an overflow, and no mask or guarded division."""
        sums = self.op in PRODUCTS | _SUMS and self.dtype is torch.float16
        return sums and not self.backward and not self.met and self.what != "-inf"

    def __str__(self) -> str:
        where = f"in the backward pass of {self.op}" if self.backward else f"{self.op} {self.region}"
        if self.met:
            return f"{self.what} came into {where} with {self.met}"
        return f"{where} returned {self.what} in {name_of(self.dtype)}; it was given {self.given}"


@dataclass(slots=True)
class Seen:
    """Counts of a whole run: products by region and dtype, and casts of parameters where no graph is recorded."""

    products: Counter[tuple[str, str, torch.dtype]] = field(default_factory=Counter)
    """By device type, the region's dtype ("" outside of regions) and the dtype of the result."""
    weight_casts: Counter[int] = field(default_factory=Counter)
    weight_bytes: int = 0

    @property
    def in_regions(self) -> set[torch.dtype]:
        """The dtypes that products in regions had."""
        return {dtype for (_, region, dtype), count in self.products.items() if region and count}


class KernelWatch:
    """Looks at each kernel while its mode is entered. `nonfinite`: what the step's kernels made or met, in order."""

    def __init__(self, findings: Findings, seen: Seen, sources: Sources) -> None:
        self.mode = Recorder(self._kernel)
        self.nonfinite: list[NonFinite] = []
        self.parameters: dict[int, str] = {}
        self.limited: Callable[[str, tuple[object, ...], torch.Tensor], None] = lambda *_: None
        self.stepping = False
        """Whether an optimizer's own ops run."""
        self.fused = 0
        """How many calls of an LSTM ran as one kernel."""
        self._findings, self._seen, self._sources = findings, seen, sources
        self._places: dict[int, Place] = {}
        self._bad: dict[int, weakref.ref[torch.Tensor]] = {}
        self._looks = True
        self._left = MOST_KERNELS

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """Run ops that are not the program's."""
        before, self._looks = self._looks, False
        try:
            yield
        finally:
            self._looks = before

    def begin(self) -> None:
        """Forget what is of the step before."""
        self.nonfinite.clear()
        self._places.clear()
        self._bad.clear()
        self.stepping = False
        self._left = MOST_KERNELS

    def place(self) -> Place:
        """Return the module and line that run now; in a backward pass those of the forward call, where it was seen."""
        node = current_node()
        if node is None:
            return self._sources.place()
        number: int = getattr(node, "_sequence_nr", lambda: -1)()
        return self._places.get(number) or self._sources.place()

    def in_hook(self) -> bool:
        """Return whether a hook of the program runs, which the backward pass calls."""
        return current_node() is not None and self._sources.in_hook()

    def _kernel(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if not self._looks or self._left <= 0:
            return func(*args, **kwargs)
        self._left -= 1
        name = overload_name(func).partition(".")[0]
        given = [x for x in tensors((args, kwargs)) if type(x) in (torch.Tensor, torch.nn.Parameter)]
        self.fused += name == "mkldnn_rnn_layer"
        averages = name in _AVERAGES and given and given[0].dtype in LOW and not self.stepping
        before = given[0].clone() if averages else None
        if name in _LIMITS and given and not self.stepping:
            with self.unobserved():
                self.limited(_LIMITS[name], args, given[0])
        out = func(*args, **kwargs)
        if name.startswith("profiler::") or name in _UNSET:
            return out
        results = [x for x in tensors(out) if type(x) in (torch.Tensor, torch.nn.Parameter) and x.dtype in FLOATS]
        backward = current_node() is not None
        if not backward and torch.is_grad_enabled():
            # Autograd numbered its node before it called this kernel.
            self._places[sequence_number() - 1] = self._sources.place()
        if (func.is_view and name not in _CASTS) or name == "detach" or not results:
            return out
        self._look_for_nonfinite(name, args, given, results[:1] if "rnn" in name else results)
        if before is not None and isinstance(results[0], torch.Tensor):
            self._average(name, args, before, results[0])
        if not backward:
            self._forward(name, given, results[0])
        return out

    # ---- values that are not finite

    def _look_for_nonfinite(
        self, name: str, args: tuple[object, ...], given: list[torch.Tensor], results: list[torch.Tensor]
    ) -> None:
        what = nonfinite(results)
        if not what:
            return
        known = [x for x in given if (bad := self._bad.get(id(x))) is not None and bad() is x]
        for x in results:
            self._bad[id(x)] = weakref.ref(x)
        written = {id(x) for x in results}
        inputs = [(x, bounds(x)) for x in given if id(x) not in written and x.dtype in FLOATS]
        carried = {part for x, _ in inputs for part in nonfinite([x]).split(" and ") if part}
        if known or any(x in ("inf", "-inf", "nan") for x in map(str, args)):
            # It may still be the first nan: a softmax whose row is all -inf, or inf - inf.
            if "nan" not in what or "nan" in carried or not carried:
                return
        elif name in CHOSEN:
            return
        elif carried:
            if not self.nonfinite:
                source = next(x for x, _ in inputs if nonfinite([x]))
                self._note(name, args, results[0], what, inputs, self._named(source))
            return
        self._note(name, args, results[0], what, inputs, "")

    def _note(
        self,
        name: str,
        args: tuple[object, ...],
        out: torch.Tensor,
        what: str,
        inputs: list[tuple[torch.Tensor, tuple[float, float] | None]],
        met: str,
    ) -> None:
        if len(self.nonfinite) >= 20:
            return
        finite = [bound for _, pair in inputs if pair for bound in pair if math.isfinite(bound)]
        finite += [x for x in args if isinstance(x, (int, float)) and math.isfinite(x)]
        told = (f"{described(x)} from {pair[0]:.4g} to {pair[1]:.4g}" for x, pair in inputs if pair)
        given = ", ".join(told) or "no floating tensor"
        zero = any(bool((x == 0).any()) for x, _ in inputs)
        region, low = _region_dtype(out.device.type), min(finite, default=0.0)
        where = (f"in a {region} region" if region else "in no region", self.place(), current_node() is not None)
        self.nonfinite.append(NonFinite(name, out.dtype, what, given, low, zero, met, *where))

    def _named(self, x: torch.Tensor) -> str:
        if id(x) in self.parameters or self._sources.known(x):
            return f"the parameter or buffer {self.parameters.get(id(x)) or self._sources.name(x)}"
        return f"{described(x)}, which no op of this step made: look at the data"

    def _add(self, rule: str, seen: str) -> None:
        self._findings.add(rule, self.place(), seen)

    # ---- precision

    def _forward(self, name: str, given: list[torch.Tensor], out: torch.Tensor) -> None:
        region = _region_dtype(out.device.type)
        if name in _CASTS:
            self._cast(given[0], out, region)
            return
        if name in PRODUCTS or name.startswith("_scaled_dot_product"):
            self._seen.products[out.device.type, region, out.dtype] += 1
        low = next((name_of(x.dtype) for x in given if x.dtype in LOW), "")
        outside = low and not region and torch.is_grad_enabled() and any(x.requires_grad for x in given)
        # A program without regions chose its dtypes itself.
        if outside and any(inside for _, inside, _ in self._seen.products):
            loss = "loss" in name or name in _LOSSES
            if loss or name in _SENSITIVE:
                rule = "loss-outside-region-in-low" if loss else "softmax-or-exp-in-low"
                self._add(rule, f"{name} outside of every region was given {low}")

    def _cast(self, before: torch.Tensor, after: torch.Tensor, region: str) -> None:
        if after.dtype not in LOW or before.dtype == after.dtype:
            return
        if isinstance(before, torch.nn.Parameter):
            if region:
                self._seen.weight_casts[id(before)] += 1
                self._seen.weight_bytes += before.numel() * (before.element_size() + after.element_size())
            return
        limit = EXACT[after.dtype]
        pair = bounds(before)
        if pair is None or max(-pair[0], pair[1]) <= limit or not all(map(math.isfinite, pair)):
            return
        if nonfinite([after]):  # the mask of an attention, not positions
            return
        # Pixels are integers up to 255, which each lower precision holds; larger ones are positions, ids or counts.
        whole = before if not before.is_floating_point() else before.round()
        lost = int((after.to(before.dtype) != before).sum())
        if lost and bool((whole == before).all()) and before.numel() > 1:
            cast = f"integers up to {max(-pair[0], pair[1]):.0f} were cast to {name_of(after.dtype)}"
            changed = f"{lost} of {before.numel()} changed"
            self._add("positions-in-product", f"{cast}, which holds each one up to {limit}: {changed}")

    def _average(self, name: str, args: tuple[object, ...], before: torch.Tensor, after: torch.Tensor) -> None:
        """Look whether a running average in low precision moves at all."""
        if current_node() is not None or (torch.is_grad_enabled() and after.requires_grad):
            return
        factor = next((x for x in reversed(args) if isinstance(x, (int, float))), None)
        slow = factor is not None and (0 < factor < 0.02 if "lerp" in name else 0.98 < factor < 1)
        same = float((before == after).float().mean()) if before.numel() else 0.0
        if slow and same > 0.5 and bool(before.any()):
            elements = f"{before.numel()} elements of {name_of(before.dtype)}"
            self._add("low-average", f"{name} by {factor} left {same:.0%} of {elements} unchanged")


def thread_watch(findings: Findings, started: Place) -> Recorder:
    """Return a mode that looks, in a thread that was started in a region, whether products run without one."""

    def run(func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        out = func(*args, **kwargs)
        name = overload_name(func).partition(".")[0]
        made = next((x for x in tensors(out) if name in PRODUCTS and x.dtype is torch.float32), None)
        if made is not None and not _region_dtype(made.device.type):
            findings.add("thread-without-region", started, f"{name} ran in fp32 in the thread, which entered no region")
        return out

    return Recorder(run)


def _region_dtype(device: str) -> str:
    with restored_state():  # of the code that called the kernel: inside of a dispatch mode autocast is off
        return name_of(torch.get_autocast_dtype(device)) if is_on(device) else ""


def is_on(device: str) -> bool:
    """Return whether autocast is on for a device type, which may have none."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
