"""Programs as data. A program is a tuple of steps; a step may hold programs.

Devices are named by their type, dtypes as in `ampcheck.spec.dtypes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

LAST = "last"
"""An op's input that is the last result on its device, or a new float32 tensor where there is none."""


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of a `torch.autocast`; None means that the argument is left out."""

    device: str
    dtype: str | None = None
    enabled: bool = True
    cache_enabled: bool | None = None


@dataclass(frozen=True, slots=True)
class With:
    """`with torch.autocast(...): body`."""

    options: Options
    body: Program


@dataclass(frozen=True, slots=True)
class Decorated:
    """A function decorated with a region at this step, then called `calls` times, inside `around` if given."""

    options: Options
    body: Program
    calls: int = 1
    around: Options | None = None


@dataclass(frozen=True, slots=True)
class Reenter:
    """One region object entered twice: for `body`, and then for `second_body` inside it (`nested`) or after it."""

    options: Options
    body: Program
    second_body: Program
    nested: bool = False


@dataclass(frozen=True, slots=True)
class Generator:
    """A generator that holds a region over its one yield: `body` in it, `between` while suspended, then its end."""

    options: Options
    body: Program
    between: Program


@dataclass(frozen=True, slots=True)
class Op:
    """A call of an op of `OPS` on new tensors of the named dtypes; `LAST` means the last result."""

    op: str
    device: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UseWeight:
    """A product with the weight of that name, made at first use.

    "leaf…" is a float32 leaf that requires grad, "frozen…" one that does not, "low…" one of the device's default dtype.
    """

    device: str
    weight: str


@dataclass(frozen=True, slots=True)
class Set:
    """A state function: `what` is "enabled", "dtype" or "cache_enabled" (which has no device, so it is ignored)."""

    what: str
    device: str
    value: bool | str


@dataclass(frozen=True, slots=True)
class ClearCache:
    """`torch.clear_autocast_cache()`."""


@dataclass(frozen=True, slots=True)
class Raise:
    """Raise an exception that ends everything up to the next `Catch`."""


@dataclass(frozen=True, slots=True)
class Catch:
    """Run a body, and go on where it raised."""

    body: Program


@dataclass(frozen=True, slots=True)
class NoGrad:
    """`with torch.no_grad(): body`."""

    body: Program


@dataclass(frozen=True, slots=True)
class InferenceMode:
    """`with torch.inference_mode(): body`."""

    body: Program


@dataclass(frozen=True, slots=True)
class Thread:
    """Run a body in a new thread and wait for it; what it raises is raised here."""

    body: Program


Step: TypeAlias = (
    With
    | Decorated
    | Reenter
    | Generator
    | Op
    | UseWeight
    | Set
    | ClearCache
    | Raise
    | Catch
    | NoGrad
    | InferenceMode
    | Thread
)
Program: TypeAlias = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """One thing seen, or to be seen, while a program runs.

    `where` is the step's place, e.g. "1.2" for the second step of the first; `what` names the op or state; `value` is
    comparable.
    """

    where: str
    what: str
    value: object


@dataclass(frozen=True, slots=True)
class OpFacts:
    """The facts of an op that programs use: its overload, how many tensors it takes, whether it refuses inputs of
    different dtypes in some implementations (then programs leave the result open), and the function to call."""

    overload: str
    tensors: int
    strict: bool
    source: str


OPS = {
    "mm": OpFacts("mm", 2, True, "torch.mm"),
    "mse_loss": OpFacts("mse_loss", 2, False, "torch.nn.functional.mse_loss"),
    "atan2": OpFacts("atan2", 2, False, "torch.atan2"),
    "cat": OpFacts("cat", 2, False, "lambda *tensors: torch.cat(tensors)"),
    "sum": OpFacts("sum", 1, False, "torch.sum"),
    "mul": OpFacts("mul.Tensor", 2, False, "torch.mul"),
    "bce": OpFacts("binary_cross_entropy", 2, True, "torch.nn.functional.binary_cross_entropy"),
}
"""The ops of programs. Between them they meet every policy but append, on a device or other."""
