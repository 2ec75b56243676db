"""PyTorch's ops and their samples, seeded the same way in every process; each run there and on the CPU, and compared.

There is PyTorch on the device of `ampcheck.jax_device`, or torchax.
"""

import contextlib
import copy
import importlib
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from zlib import crc32

import torch

from ampcheck.observe.torch_private import TorchDispatchMode, pytree
from ampcheck.samples.op_database import spread
from ampcheck.samples.torch_testing import internal
from scripts.jax_coverage import judge
from scripts.jax_coverage.judge import INVARIANTS, indices_as_values

# What these give is memory nobody has written to.
UNINITIALISED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
# What PyTorch wants on the CPU whatever device the input is on.
HOST_ARGUMENTS = frozenset({"tensor_split"})
# float32 against float32 computed in another order; PyTorch's own comparison of devices (test_ops.py,
# test_compare_cpu) allows 1e-3 for both.
RTOL, ATOL = 1e-4, 1e-5


def name_of(op: Any) -> str:
    """Return the op's name with its variant: "linalg.vector_norm", "std_mean.unbiased"."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


@cache
def ops() -> dict[str, Any]:
    """Return the OpInfos that PyTorch declares for float32 on the CPU, by name."""
    op_db = internal("common_methods_invocations").op_db
    unseed()
    return {name_of(op): op for op in op_db if torch.float32 in op.supported_dtypes("cpu")}


def unseed() -> None:
    """Random OpInfos seed every call with the same number; let each call draw anew, so that draws can be compared."""
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal") and hasattr(module, "wrapper_set_seed"):
            setattr(module, "wrapper_set_seed", lambda op, *args, **kwargs: op(*args, **kwargs))  # noqa: B010


def seed(name: str, draw: int = 0) -> None:
    """Seed PyTorch for an op. Every device draws from this seed, each its own numbers."""
    torch.manual_seed(crc32(name.encode()) + draw)


KINDS = ("plain", "reference", "edges")
"""Samples of an op: those of its gradients' tests; PyTorch's longer list with broadcasting, other dtypes, Python
numbers, strides and extreme values; and plain ones whose input is rounded, so that elements are equal, and has nan,
both infinities and a negative zero among its elements."""
_EDGES = (math.nan, math.inf, -math.inf, -0.0)


def samples(op: Any, limit: int, dtype: torch.dtype = torch.float32, kind: str = "plain") -> list[Any]:
    """At most `limit` of the op's forward samples, evenly spread."""
    seed(name_of(op))
    given = op.reference_inputs if kind == "reference" else op.sample_inputs
    every = list(given("cpu", dtype, requires_grad=False))
    if getattr(op, "supports_two_python_scalars", False):  # whose result is on the CPU, on every device
        every = [sample for sample in every if any(isinstance(x, torch.Tensor) for x in (sample.input, *sample.args))]
    if kind == "edges":
        for sample in every:
            sample.input = _with_edges(sample.input)
    return [every[i] for i in spread(len(every), limit)]


def _with_edges(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.layout is not torch.strided:
        return value
    if not value.is_contiguous():
        return value
    out = value.detach().round()
    for i, edge in enumerate(_EDGES[: max(value.numel() - 1, 0)]):
        out.view(-1)[(7 * i + 1) % value.numel()] = edge
    return out


def tolerances(op: Any, dtype: torch.dtype = torch.float32) -> tuple[float, float]:
    """Relative and absolute tolerance: ours for float32, or the widest that the OpInfo itself allows in some test."""
    rtol, atol = RTOL, ATOL
    for info in op.decorators:
        for decorator in getattr(info, "decorators", [info]):
            given = getattr(decorator, "d", {})  # toleranceOverride holds pairs, precisionOverride absolute tolerances
            allowed: Any = given.get(dtype) if isinstance(given, dict) else None
            if allowed is not None:
                rtol = max(rtol, getattr(allowed, "rtol", 0.0))
                atol = max(atol, getattr(allowed, "atol", allowed))
    return rtol, atol


def _moved(tree: Any, move: Callable[[torch.Tensor], Any]) -> Any:
    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return move(leaf)
        if isinstance(leaf, torch.device) or leaf == "cpu":
            return "jax"
        return leaf

    return pytree.tree_map(one, tree)


def _named(given: Any) -> bool:
    """Return whether an argument names the device: a tensor on it, or its name."""
    return any(
        leaf == "jax" if isinstance(leaf, str) else isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(given)
    )


class Way:
    """A way for inputs to reach an implementation and for results to come back: that of plain tensors of the device.

    `caches`: whether a second call of the same kind takes another path than the first. `host_arguments`: whether
    arguments that PyTorch wants on the CPU stay there (`HOST_ARGUMENTS`).
    """

    caches = True
    host_arguments = True

    def __init__(self) -> None:
        import ampcheck.jax_device  # noqa: F401, PLC0415  # makes the device

    def there(self, tree: Any) -> Any:
        """Return the CPU tensors of a sample on the implementation, devices named in it replaced."""
        return _moved(tree, self._to)

    def _to(self, tensor: torch.Tensor) -> Any:
        """Return a tensor there; one that is not contiguous keeps its strides."""
        tensor = tensor.detach()
        if tensor.layout == torch.strided and not tensor.is_contiguous() and 0 not in tensor.stride():
            strided = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="jax")
            return strided.copy_(tensor)
        return tensor.to("jax")

    def back(self, tree: Any) -> Any:
        """Return the results on the CPU. Raises RuntimeError where one is not the implementation's."""
        return pytree.tree_map(self._from, tree)

    def _from(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.device.type != "jax":
            raise RuntimeError(f"a result lies on {leaf.device}")
        return leaf.detach().cpu()

    def around(self, given: Any) -> contextlib.AbstractContextManager[Any]:
        """Return the context to call the op in with these arguments, which `there` gave.

        Where no argument says which device is meant, the device is the default.
        """
        return contextlib.nullcontext() if _named(given) else torch.device("jax")


class Torchax(Way):
    """torchax's tensors under its default environment, in its accuracy mode (64-bit types, full matmul precision)."""

    caches = False
    host_arguments = False

    def __init__(self) -> None:
        torchax = importlib.import_module("torchax")
        torchax.enable_accuracy_mode()
        self._env: Any = torchax.default_env()

    def _to(self, tensor: torch.Tensor) -> Any:
        return self._env.to_xla(tensor.detach())

    def _from(self, leaf: Any) -> Any:
        if type(leaf).__module__.startswith("torchax"):
            return leaf.torch()
        if isinstance(leaf, torch.Tensor):
            raise RuntimeError(f"a result is a plain tensor on {leaf.device}, not torchax's")
        return leaf

    def around(self, given: Any) -> contextlib.AbstractContextManager[Any]:
        """Return torchax's environment, which answers for its tensors, and the default device as another way does."""
        stack = contextlib.ExitStack()
        stack.enter_context(self._env)
        stack.enter_context(super().around(given))
        return stack


IMPLEMENTATIONS: dict[str, Callable[[], Way]] = {"jax": Way, "torchax": Torchax}
"""Whose figures: this project's device, and torchax's tensors under its default environment."""

_DRAWS, _ELEMENTS = 24, 512  # draws of a random op: at least as many, and enough for as many elements
_MISSING = re.compile(r"(\S+) has no kernel on the jax device|Operator with name (\S+) has no lowering")


class _Seeded(TorchDispatchMode):
    """Notes whether an op draws random numbers."""

    random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _fresh(tree: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else copy.copy(leaf), tree)


def _called(op: Any, given: Any) -> Any:
    return op(given[0], *given[1], **given[2])


def measure(
    op: Any, way: Way, limit: int, dtype: torch.dtype = torch.float32, kind: str = "plain"
) -> Iterator[str | None]:
    """Yield why each of the op's samples does not agree, "" where it does, None where the CPU does not compute it."""
    rtol, atol = tolerances(op, dtype)
    for sample in samples(op, limit, dtype, kind):
        given = (sample.input, sample.args, sample.kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seed(name_of(op))
            try:
                with _Seeded() as seeded:
                    expected = _called(op, _fresh(given))
            except Exception:
                yield None
                continue
            yield _reason(op, sample, way, expected, seeded.random, (rtol, atol))


def _reason(op: Any, sample: Any, way: Way, expected: Any, random: bool, bounds: tuple[float, float]) -> str:
    name, given = name_of(op), (sample.input, sample.args, sample.kwargs)

    def there() -> Any:
        fresh = _fresh(given)
        stays = way.host_arguments and name in HOST_ARGUMENTS
        moved = (way.there(fresh[0]), *fresh[1:]) if stays else way.there(fresh)
        with way.around(moved):
            return _called(op, moved)

    try:
        seed(name)
        actual = way.back(there())
        if name in INVARIANTS:
            invariant = INVARIANTS[name]
            loose = tuple(max(b, 1e-3) for b in bounds) if random else tuple(max(b, 1e-4) for b in bounds)
            if shapes := judge.difference(actual, expected, *bounds, values=False):
                return shapes
            return judge.difference(invariant(sample, actual), invariant(sample, expected), *loose)
        if name.split(".")[0] in UNINITIALISED:
            return judge.difference(actual, expected, *bounds, values=False)
        if random:
            return _random(op, given, way, expected, there, bounds)
        found = judge.difference(actual, expected, *bounds)
        if found:
            return _unless_tied(name, sample, actual, expected, bounds, found)
        if not way.caches:
            return ""
        second = way.back(there())  # what a second call does may come from a cache
        found = judge.difference(second, actual, 0.0, 0.0)
        return f"a second call gives another result: {found}" if found else ""
    except Exception as error:
        return describe(error)


def _unless_tied(name: str, sample: Any, actual: Any, expected: Any, bounds: tuple[float, float], found: str) -> str:
    mine, theirs = (indices_as_values(name, sample, out) for out in (actual, expected))
    if mine is actual:
        return found
    return judge.difference(mine, theirs, *bounds) and found


def _random(op: Any, given: Any, way: Way, expected: Any, there: Any, bounds: tuple[float, float]) -> str:
    elements = min(
        (v.numel() for _, v in judge.leaves(expected) if isinstance(v, torch.Tensor) and v.numel()), default=1
    )
    draws = max(_DRAWS, min(_ELEMENTS // elements, 128))
    theirs, mine = [], []
    for draw in range(draws):
        seed(name_of(op), draw)
        theirs.append(_called(op, _fresh(given)))
        seed(name_of(op), draw)
        mine.append(way.back(there()))
    if not any(judge.difference(other, theirs[0], 0.0, 0.0) for other in theirs[1:]):
        return judge.difference(mine[0], theirs[0], *bounds)  # asked for nothing random, such as dropout of 0
    return judge.distribution(mine, theirs)


def describe(error: BaseException) -> str:
    """Return the error in one line; a missing overload by its name."""
    text = " ".join(str(error).split())
    if found := _MISSING.search(text):
        return f"no kernel: {found[1] or found[2]}"
    return f"{type(error).__name__}: {text[:300]}"
