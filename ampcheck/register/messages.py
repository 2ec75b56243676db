"""Messages for ops that autocast refuses, with the call to use instead."""

from __future__ import annotations

from ampcheck.register.torch_private import OpOverload
from ampcheck.spec.casting import BANNED_MESSAGE


def overload_name(op: OpOverload) -> str:
    """Return the overload with its namespace: `aten::mm`, `aten::softmax.int`."""
    return str(op.name())


def refusal(op: OpOverload, device_type: str) -> str:
    """Return the error of a banned op."""
    name = overload_name(op)
    if instead := BANNED_MESSAGE.get(name.removeprefix("aten::")):
        return (
            f"{name} is unsafe to autocast on {device_type}: its input is a probability, which a lower precision "
            f"rounds to 0 or 1, where the loss is infinite; call {instead} on what went into the sigmoid, or leave "
            f"autocast for this loss with torch.autocast({device_type!r}, enabled=False)."
        )
    return (
        f"{name} is unsafe to autocast on {device_type}; leave autocast for it with "
        f"torch.autocast({device_type!r}, enabled=False)."
    )
