"""Casts between floating-point dtypes, beside the numbers that the bits of each dtype stand for.

The reference is made of the codes of a dtype in float64, so no cast of PyTorch is trusted but that of float32 to
float64. It rounds to the nearest number, of two to the one with the even code. What is beyond the largest number is
infinite where the dtype has infinities, and else what `BEYOND` says.
"""

from collections.abc import Callable
from functools import cache

import torch

from ampcheck.checks.amp import Amp
from ampcheck.checks.relations import unlike
from ampcheck.compilers.kinds import quiet

FORMATS = {
    "float16": (5, 10, 15),
    "bfloat16": (8, 7, 127),
    "float8_e5m2": (5, 2, 15),
    "float8_e4m3fn": (4, 3, 7),
    "float8_e5m2fnuz": (5, 2, 16),
    "float8_e4m3fnuz": (4, 3, 8),
    "float8_e8m0fnu": (8, 0, 127),
}
"""Bits of the exponent, bits of the fraction, and bias. e8m0 has neither a sign nor a zero, and halves go up."""
BEYOND = {
    "float8_e4m3fn": 448.0,
    "float8_e5m2fnuz": torch.nan,
    "float8_e4m3fnuz": torch.nan,
    "float8_e8m0fnu": torch.nan,
}
"""What is beyond the largest number of a dtype without infinities (c10/util/Float8_*.h), infinity too."""
Cast = Callable[[torch.Tensor, torch.dtype], torch.Tensor]


def _each(x: torch.Tensor, to: torch.dtype, make: Callable[[float], torch.Tensor]) -> torch.Tensor:
    """Return a vector made of numbers one by one; those that are beyond the largest one of a dtype are refused."""
    most = torch.finfo(to).max
    return torch.cat([one.to(to) if abs(one.item()) > most else make(one.item()) for one in x.split(1)])


WAYS: dict[str, Cast] = {
    "to": lambda x, to: x.to(to),
    "to, each number alone": lambda x, to: torch.cat([one.to(to) for one in x.split(1)]),
    "to, strided": lambda x, to: torch.stack((x, x), 1)[:, 1].to(to),
    "to, transposed": lambda x, to: torch.stack((x, x)).mT.to(to).mT[1],
    "to, some at a time": lambda x, to: torch.cat([some.to(to) for some in x.split(13)]),
    "copy_": lambda x, to: torch.empty_like(x, dtype=to).copy_(x),
    "copy_, strided": lambda x, to: torch.empty(len(x), 3, dtype=to, device=x.device)[:, 1].copy_(x),
    "copy_, expanded": lambda x, to: torch.cat([x.new_empty(70, dtype=to).copy_(one)[69:] for one in x]),
    "tensor": lambda x, to: torch.tensor(x.tolist(), dtype=to, device=x.device),
    "full": lambda x, to: _each(x, to, lambda v: torch.full((70,), v, dtype=to, device=x.device)[69:]),
    "fill_": lambda x, to: _each(x, to, lambda v: x.new_empty(3, dtype=to).fill_(v)[2:]),
    "fill_ of a tensor": lambda x, to: torch.cat([x.new_empty(3, dtype=to).fill_(one)[2:] for one in x]),
    "out=": lambda x, to: torch.mul(x, 1, out=torch.empty_like(x, dtype=to)),
}
"""Ways to cast a vector."""


@cache
def _magnitudes(name: str) -> torch.Tensor:
    """Return what each code of a dtype stands for, without the sign."""
    exponents, bits, bias = FORMATS[name]
    code = torch.arange(1 << exponents + bits)
    exponent, fraction = code >> bits, code % (1 << bits)
    made = (fraction + (1 << bits) * (exponent > 0)) * 2.0 ** (exponent.clamp(min=1) - bias - bits).double()
    if not bits:
        made[0] = 2.0**-bias
    if name.endswith(("fn", "fnu")):
        made[-1] = torch.nan
    elif not name.endswith("fnuz"):
        made[exponent == exponent[-1]] = torch.nan
        made[-(1 << bits)] = torch.inf
    return made


def _exact(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return the numbers of a tensor of a dtype in float64."""
    if name == "float32":
        return x.double()
    code, made = x.view(torch.int16 if x.itemsize == 2 else torch.uint8).long(), _magnitudes(name)
    negative = code & len(made) != 0
    found = torch.where(negative, -1.0, 1.0) * made[code % len(made)]
    return torch.where(negative & (found == 0), torch.nan, found) if name.endswith("fnuz") else found


def _rounded(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return numbers as a dtype has them."""
    if name == "float32":
        return x
    made = _magnitudes(name)
    made = made[made.isfinite()]
    made, beyond = torch.cat((made, 2 * made[-1:] - made[-2:-1] if FORMATS[name][1] else 2 * made[-1:])), len(made)
    size = x.abs()
    above = torch.searchsorted(made, size).clamp(1, beyond)
    down, up = size - made[above - 1], made[above] - size
    code = above - ((down < up) | ((down == up) & (above % 2 == 1) & (FORMATS[name][1] > 0))).long()
    found = torch.where(code == beyond, BEYOND.get(name, torch.inf), made[code])
    found = torch.where(x.isnan(), torch.nan, found).copysign(x)
    return found + 0.0 if name.endswith("fnuz") else found  # which have no other zero


def _given(source: str, target: str) -> torch.Tensor:
    """Return numbers of a source that are near those of a target: they, halves, neighbours, ends, none at all."""
    dtype = getattr(torch, source)
    if "float8" in source:
        return torch.arange(256).to(torch.uint8).view(dtype)
    made = _magnitudes(target if target in FORMATS else "float16")
    made = made[made.isfinite()]
    made = torch.cat((made[:: -(-len(made) // 200)], made[:3], made[-3:]))
    beyond = made[-1] * torch.tensor([1 + 2**-10, 1.04, 17 / 16, 1.1, 1.125, 1.25, 1.5, 2, 1e9]).double()
    x = torch.cat((made, (made[1:] + made[:-1]) / 2, beyond, torch.tensor([torch.inf, torch.nan]).double())).to(dtype)
    ends = [x.nextafter(torch.full_like(x, end)) for end in (torch.inf, -torch.inf)]
    x = torch.cat((x, *ends, torch.tensor([1e-30, 1e30, torch.finfo(dtype).tiny]).to(dtype)))
    return torch.cat((x, -x))


def assert_cast(amp: Amp, source: str, target: str, *, compiled: bool = False) -> None:
    """Compare every way to cast a vector of numbers with what rounding to the nearest number of a dtype gives."""
    x, to = _given(source, target), getattr(torch, target)
    x = x[~(_exact(x, source) <= 0)] if target == "float8_e8m0fnu" else x
    exact = _exact(x, source)
    want = _rounded(exact, target)

    def signed(y: torch.Tensor) -> torch.Tensor:
        return torch.where(y == 0, torch.full_like(y, 1e-300).copysign(y), y)

    ways: dict[str, Cast] = {"compiled": torch.compile(lambda x, to: x.to(to), dynamic=False)} if compiled else WAYS
    amp.unjudged = f"no way casts {source} to {target}"
    for name, way in ways.items():
        try:
            with amp.region(), quiet():
                got = amp.host(way(x.to(amp.type), to))
        except (RuntimeError, TypeError):  # a kernel that is not there
            continue
        said = unlike(signed(_exact(got.contiguous(), target)), signed(want), [exact], 0.0)
        amp.check(not said, f"{source} to {target} by {name}", said or "agrees")
