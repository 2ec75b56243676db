"""The values of `ampcheck.samples.tensors` as expressions of plain torch: the same ones, from the same seeds."""

from __future__ import annotations

from zlib import crc32

from ampcheck.devices.base import Device
from ampcheck.samples.describe import TensorArg
from ampcheck.spec.torch_dtypes import DTYPES

SEEDED = """\
def seeded(make, shape, seed):
    return make(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))"""

_RAND, _RANDN = "seeded(torch.rand, {shape}, {seed})", "seeded(torch.randn, {shape}, {seed})"
_ORDER = "torch.randperm({count}, generator=torch.Generator().manual_seed({seed}))"
_REGULAR = f"(0.3 * {_RANDN} + 2 * torch.eye({{rows}}, {{columns}}, dtype=torch.float64))"
EXPRESSIONS = {
    "normal": _RANDN,
    "unit": f"(0.05 + 0.9 * {_RAND})",
    "signed_unit": f"(2 * (0.05 + 0.9 * {_RAND}) - 1)",
    "positive": f"(0.5 + 2 * {_RAND})",
    "large": f"(6 * {_RANDN})",
    "small": f"({_RANDN} / 128)",
    "sign": f"{_RANDN}.sign()",
    "spd": f"((lambda x: x @ x.mT / {{columns}})({_RANDN}) + 2 * torch.eye({{columns}}, dtype=torch.float64))",
    "regular": _REGULAR,
    "lower": f"{_REGULAR}.tril()",
    "upper": f"{_REGULAR}.triu()",
    "log_probability": f"{_RANDN}.log_softmax(-1)",
    "distinct": f"(({_ORDER}.double() - {{half}}) / 8).reshape({{shape}})",
    "zero": "torch.zeros({shape}, dtype=torch.float64)",
    "one": "torch.ones({shape}, dtype=torch.float64)",
}
"""How the floating values of each key of `ampcheck.samples.tensors.FILLS` are made."""
_WHOLE = {
    "integers": "torch.randint({high}, {shape}, generator=torch.Generator().manual_seed({seed}))",
    "arange": "torch.arange({count}).reshape({shape})",
    "pivots": "torch.arange(1, {columns} + 1).expand({shape})",
}


def expression(arg: TensorArg, dtype: str, position: int, device: Device) -> str:
    """Return a tensor argument as plain torch makes it; see `ampcheck.samples.tensors.host_tensor`."""
    where = "cpu" if arg.device == "cpu" else device.type
    if not device.has_values:
        return f"torch.empty({arg.shape}, dtype={DTYPES[dtype]}, device={where!r})"
    count = 1
    for size in arg.shape:
        count *= size
    facts = {
        "shape": arg.shape,
        "seed": crc32(repr((arg.shape, arg.fill, arg.seed, position)).encode()),
        "high": arg.high,
        "count": count,
        "half": count // 2,
        "rows": arg.shape[-2] if len(arg.shape) > 1 else 0,
        "columns": arg.shape[-1] if arg.shape else 0,
    }
    wanted = DTYPES[dtype]
    own = DTYPES[arg.dtype] if arg.dtype else None
    if arg.fill in _WHOLE:
        made = _WHOLE[arg.fill].format(**facts)
    elif own is not None and own.is_complex:
        part = "torch.randn({shape}, dtype=torch.float64, generator=g)".format(**facts)
        made = f"(lambda g: torch.complex({part}, {part}))(torch.Generator().manual_seed({facts['seed']}))"
    else:
        made = EXPRESSIONS[arg.fill].format(**facts)
        if not wanted.is_floating_point and own is None:
            made = f"({made} * 3).round()"
    if arg.strided and len(arg.shape) > 1:  # as ampcheck.samples.tensors makes one that is not contiguous
        made = f"{made}.mT.clone(memory_format=torch.contiguous_format).mT"
    elif arg.strided:
        made = f"torch.stack([{made}] * 2, -1)[..., 0]"
    on = "" if where == "cpu" else f"{where!r}, "
    return f"{made}.to({on}{wanted})"
