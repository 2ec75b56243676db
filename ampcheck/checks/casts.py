"""Casts between floating-point dtypes, beside the numbers that the bits of each dtype stand for.

The reference is made of the codes of a dtype in float64, so no cast of PyTorch is trusted but that of float32 to
float64. It rounds to the nearest number, of two to the one with the even code. What is beyond the largest number is
infinite, nan in a dtype without infinities, and 448 in float8_e4m3fn (c10/util/Float8_*.h).
"""

from collections.abc import Callable, Mapping
from functools import cache

import torch

from ampcheck.checks.amp import Amp
from ampcheck.checks.relations import unlike
from ampcheck.compilers.kinds import quiet

SCALE = torch.float8_e8m0fnu  # powers of two, without a sign and a zero; halves go up


def each(x: torch.Tensor, to: torch.dtype, make: Callable[[float], torch.Tensor]) -> torch.Tensor:
    """Return a vector made of numbers one by one; those beyond the least and the largest of a dtype are refused."""
    info, values = torch.finfo(to), zip(x.split(1), x.tolist(), strict=True)
    return torch.cat([one.to(to) if value < info.min or value > info.max else make(value) for one, value in values])


@cache
def _magnitudes(dtype: torch.dtype) -> torch.Tensor:
    """Return the numbers of the bit patterns of a dtype whose sign bit is 0, in their order, in float64."""
    info = torch.finfo(dtype)
    bits = {torch.float16: 10, torch.bfloat16: 7}.get(dtype) or int(str(dtype).partition("m")[2][0])
    code = torch.arange(1 << info.bits - (dtype != SCALE))
    exponent, fraction = code >> bits, code % (1 << bits)
    made = (fraction + (1 << bits) * (exponent > 0)) * 2.0 ** (exponent.clamp(min=1) - 1 - bits).double()
    made = (2.0 ** code.double() if dtype == SCALE else made) * info.smallest_normal
    made[made > info.max] = torch.nan
    if "fn" not in str(dtype):
        made[-(1 << bits)] = torch.inf
    return made


def _exact(x: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor in float64."""
    if x.dtype == torch.float32:
        return x.double()
    code, made = x.view(torch.int16 if x.itemsize == 2 else torch.uint8).long(), _magnitudes(x.dtype)
    found = torch.where(code & len(made) != 0, -1.0, 1.0) * made[code % len(made)]
    # Without a negative zero, its code is nan.
    return torch.where((found == 0) & found.signbit(), torch.nan, found) if "fnuz" in str(x.dtype) else found


def _rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers as a dtype has them."""
    if dtype == torch.float32:
        return x
    made = _magnitudes(dtype)
    made, size = made[made.isfinite()], x.abs()
    beyond = len(made)
    made = torch.cat((made, 2 * made[-1:] - (0 if dtype == SCALE else made[-2:-1])))
    above = torch.searchsorted(made, size).clamp(1, beyond)
    down, up = size - made[above - 1], made[above] - size
    code = torch.where((down < up) | ((down == up) & (above % 2 == 1) & (dtype != SCALE)), above - 1, above)
    most = 448.0 if dtype == torch.float8_e4m3fn else torch.nan if "fn" in str(dtype) else torch.inf
    found = torch.where(x.isnan(), torch.nan, torch.where(code == beyond, most, made[code])).copysign(x)
    return found + 0.0 if "fnuz" in str(dtype) else found


def _given(source: torch.dtype, target: torch.dtype) -> torch.Tensor:
    """Return numbers near those of a target: they, the middles, neighbours of both, and ends."""
    if source.itemsize == 1:
        return torch.arange(256).to(torch.uint8).view(source)
    made = _magnitudes(torch.float16 if target == torch.float32 else target)
    made = made[made.isfinite()]
    made = torch.cat((made[:: -(-len(made) // 200)], made[:3], made[-3:]))
    ends = made[-1] * torch.tensor([1 + 2**-10, 1.04, 17 / 16, 1.1, 1.125, 1.25, 1.5, 2, 1e9, torch.inf, torch.nan])
    x = torch.cat((made, (made[1:] + made[:-1]) / 2, ends)).to(source)
    x = torch.cat((x, *(x.nextafter(torch.full_like(x, end)) for end in (torch.inf, -torch.inf))))
    return torch.cat((x, -x))


def assert_cast(
    amp: Amp, source: torch.dtype, target: torch.dtype, ways: Mapping[str, Callable[..., torch.Tensor]]
) -> None:
    """Compare every way to cast a vector of numbers with what rounding to the nearest number of a dtype gives."""
    x = _given(source, target)
    x = x[~(_exact(x) <= 0)] if target == SCALE else x
    exact = _exact(x)
    if target != torch.float32:
        eps, right = torch.finfo(target).eps, _magnitudes(target)[_magnitudes(target) > 1][0].item() - 1
        amp.check(eps == right, f"eps of {target}", f"{eps}; {right} is expected")
    amp.unjudged = f"no way casts {source} to {target}"

    def signed(y: torch.Tensor) -> torch.Tensor:
        return torch.where(y == 0, torch.full_like(y, 1e-300).copysign(y), y)

    for name, way in ways.items():
        try:
            with amp.region(enabled=False), quiet():  # which refuses to put float8 tensors together
                got = amp.host(way(x.to(amp.type), target)).contiguous()
        except (RuntimeError, TypeError) as error:
            if "not implemented for" not in str(error):
                amp.check(False, f"{source} to {target} by {name}", f"raised {error}")
            continue
        said = unlike(signed(_exact(got)), signed(_rounded(exact, target)), [exact], 0.0)
        amp.check(not said, f"{source} to {target} by {name}", said or "agrees")
