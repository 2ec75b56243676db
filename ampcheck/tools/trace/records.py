"""The record of a trace: plain data that can be read, summed up and written as JSON."""

from dataclasses import asdict, dataclass, field
from typing import Literal

from ampcheck.spec.casting import LOW

Origin = Literal["autocast", "gradient", "user", "op"]
"""Who asked for a cast. autocast: a region. gradient: the backward of a cast that autocast made. user: a conversion
called by name (`.to`, `.float`, …), its gradient included. op: the op casts by itself, with and without autocast."""

Kind = Literal["weight", "frozen", "view", "buffer", "input", "activation"]
"""Kind of tensor. weight: a leaf that requires grad. frozen: a parameter that does not. view: a view of a parameter.
buffer: a module's. activation: something the traced program computed. input: any other tensor."""


@dataclass(slots=True)
class CastRecord:
    """One tensor cast.

    `given`, `got`: its dtype before and after. `elements`: how many. `bytes`: read and written, elements times both
    item sizes. `source`: the parameter's name or the tensor's shape. `version`: PyTorch's count of in-place changes of
    it. `key`: equal for two casts of the same tensor. `cacheable`: "" where autocast keeps it for reuse, else why not.
    `uses`: how many ops took the result with gradients on, later ones through the weight cache included.
    """

    given: str
    got: str
    elements: int
    bytes: int
    origin: Origin
    kind: Kind
    source: str
    version: int
    key: int
    cacheable: str
    uses: int = 0


@dataclass(slots=True)
class TracedRegion:
    """The autocast state for one device type; `dtype` and `cache` mean nothing where it is not `enabled`."""

    device: str
    enabled: bool
    dtype: str
    cache: bool

    def __str__(self) -> str:
        return f"{self.device} {self.dtype}" if self.enabled else "off"


@dataclass(slots=True)
class OpRecord:
    """One op of the program, or one step of its backward.

    Attributes:
        number: its place in the program's order.
        name: the public call's overload or overload packet, e.g. `linear`, or the autograd node, e.g. `MmBackward0`.
        policy: that of the public call under the region's dispatch key; "fallthrough" where it has none, "unknown"
            where it is registered but in no table, "" for a step of the backward.
        phase: "forward" or "backward".
        module: path of the innermost module, below the class of the outermost one.
        location: file and line of the program.
        region: the autocast state when it was called.
        casts: those made for it.
        cache_hits: how many weights it got low from the weight cache, without a cast.
        stale: those of them that were changed in place since they were cast.
        dtype: the floating dtypes its kernels received, several joined by "+"; "" where none did.
        out: the same of what they returned.
        kernels: the overloads that ran, casts and views left out.
        views: how many view kernels ran.
        error: the exception it ended with, or "".
        nonfinite: which values that are not finite its kernels returned, as in "inf and -inf", or "".
    """

    number: int
    name: str
    policy: str
    phase: str
    module: str
    location: str
    region: TracedRegion
    casts: list[CastRecord] = field(default_factory=list)
    cache_hits: int = 0
    stale: list[str] = field(default_factory=list)
    dtype: str = ""
    out: str = ""
    kernels: list[str] = field(default_factory=list)
    views: int = 0
    error: str = ""
    nonfinite: str = ""

    @property
    def ran_in(self) -> str:
        """Return "low", "float32", "other" for other dtypes or a mixture, or "none" without floating tensors."""
        # These policies leave the input alone and have the kernel compute and return float32.
        dtypes = self.out if self.policy in ("optdtype", "append") else self.dtype
        if not dtypes:
            return "none"
        if dtypes == "fp32":
            return "float32"
        return "low" if all(name in LOW for name in dtypes.split("+")) else "other"

    @property
    def autocasts(self) -> list[CastRecord]:
        """The casts that autocast is the cause of, those of the backward included."""
        return [cast for cast in self.casts if cast.origin in ("autocast", "gradient")]

    def data(self) -> dict[str, object]:
        """Return the record as JSON data."""
        return asdict(self) | {"ran_in": self.ran_in}
