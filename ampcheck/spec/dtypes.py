"""The dtype names the specification speaks in, and their order of width.

The specification is plain Python: it names dtypes by these strings, so that it can be read, tested and shown
without torch. `ampcheck.spec.torch_dtypes` maps them to `torch.dtype`.
"""

LOW = ("fp16", "bf16")
"""The lower precisions autocast casts to."""

FLOATING = ("fp8e4m3", "fp8e5m2", "fp16", "bf16", "fp32", "fp64")
"""Every floating-point dtype the suite uses."""

_WIDTH = {"fp8e4m3": 1, "fp8e5m2": 1, "fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}


def is_floating(dtype: str) -> bool:
    """Return whether a dtype is a floating-point one; integers, bool and complex are not."""
    return dtype in _WIDTH


def widest(dtypes: list[str]) -> str:
    """Return the widest of some floating dtypes, as `torch.promote_types` orders them.

    fp16 and bf16 hold values the other cannot, so the narrowest dtype that holds both is fp32.
    """
    distinct = set(dtypes)
    top = max(_WIDTH[d] for d in distinct)
    candidates = {d for d in distinct if _WIDTH[d] == top}
    if len(candidates) == 1:
        return candidates.pop()
    return "fp32" if top <= 2 else "fp64"
