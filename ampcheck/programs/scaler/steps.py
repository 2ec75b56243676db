"""Programs of a GradScaler as data: what is trained, and the calls in order.

Devices are "home", the device under test, and "cpu"; dtypes as in `ampcheck.spec.dtypes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of two elements, or a sparse table of three rows of two.

    `kind`: "used" in the loss, "frozen", "unused" (it has no gradient) or "sparse" (its gradient is).
    """

    dtype: str = "fp32"
    place: str = "home"
    kind: str = "used"


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer: `kind` is a key of `OPTIMIZERS`; `groups` are its parameters."""

    kind: str
    groups: tuple[tuple[Param, ...], ...]

    @property
    def params(self) -> tuple[Param, ...]:
        """The parameters of all groups."""
        return tuple(param for group in self.groups for param in group)


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of a GradScaler but for its device."""

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Bad:
    """A cause of gradients that are not finite.

    `where`: "loss" (of the parameter's device, before it is scaled), or "forward" (what one element of the parameter is
    multiplied by there). `param`: the parameter's number in its optimizer. `value`: "inf", "-inf" or "nan".
    """

    where: str
    param: int
    value: str


@dataclass(frozen=True, slots=True)
class Backward:
    """Scale the loss of an optimizer's parameters, one on each of their devices, and run its backward pass."""

    optimizer: int = 0
    bad: Bad | None = None


@dataclass(frozen=True, slots=True)
class CorruptGrad:
    """Write a value into one element of a parameter's gradient, where it has one."""

    optimizer: int
    param: int
    value: str


@dataclass(frozen=True, slots=True)
class Unscale:
    """`scaler.unscale_(optimizer)`."""

    optimizer: int = 0


@dataclass(frozen=True, slots=True)
class Clip:
    """`torch.nn.utils.clip_grad_norm_` over an optimizer's gradients, but those that are sparse."""

    optimizer: int = 0


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """`scaler.step(optimizer)`, with a closure by keyword where `closure`."""

    optimizer: int = 0
    closure: bool = False


@dataclass(frozen=True, slots=True)
class Update:
    """`scaler.update(new_scale)`; the new scale is a tensor where `as_tensor`."""

    new_scale: float | None = None
    as_tensor: bool = False


@dataclass(frozen=True, slots=True)
class ZeroGrad:
    """`optimizer.zero_grad(set_to_none)`."""

    optimizer: int = 0
    set_to_none: bool = True


@dataclass(frozen=True, slots=True)
class Reload:
    """Load the scaler's own state dict into a new scaler with other options, which takes its place."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load a state dict with this scale and tracker, and other factors as they are, into the scaler itself."""

    scale: float
    tracker: int


@dataclass(frozen=True, slots=True)
class Pickle:
    """Put the scaler that comes back from pickle, or from a deep copy, in its place."""

    copy: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """`scaler.set_<what>(value)`: "growth_factor", "backoff_factor" or "growth_interval"."""

    what: str
    value: float


Step: TypeAlias = (
    Backward | CorruptGrad | Unscale | Clip | OptimizerStep | Update | ZeroGrad | Reload | Load | Pickle | Set
)


@dataclass(frozen=True, slots=True)
class ScalerProgram:
    """Optimizers to train, and the calls. `watched`: whether `ampcheck.watch` looks on."""

    optimizers: tuple[Optimizer, ...]
    steps: tuple[Step, ...]
    options: Options = Options()
    watched: bool = True


OPTIMIZERS = {
    "sgd": "torch.optim.SGD({}, lr=0.5)",
    "momentum": "torch.optim.SGD({}, lr=0.5, momentum=0.5)",
    "adam": "torch.optim.Adam({}, lr=0.25)",
    "fused": "torch.optim.Adam({}, lr=0.25, fused=True)",
    "rmsprop": "torch.optim.RMSprop({}, lr=0.25, foreach=False)",
}
"""How an optimizer of each kind is made of its groups."""

ELSEWHERE = Options(init_scale=3.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=7)
"""The options of a scaler into which another one's state is loaded."""
