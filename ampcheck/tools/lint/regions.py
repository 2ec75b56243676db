"""The regions of a source file: which call makes one, and what its options are."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ampcheck.spec.state import DEFAULTS
from ampcheck.tools.lint.names import Names

_GENERIC = ("torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast")
_OF_DEVICE = {
    f"torch.{device}.amp.{middle}autocast": device for device in ("cuda", "cpu") for middle in ("", "autocast_mode.")
}
_OPTIONS = ("device_type", "dtype", "enabled", "cache_enabled")
_OLD_OPTIONS = ("enabled", "dtype", "cache_enabled")

_LOW = ("torch.bfloat16", "torch.float16", "torch.half")
_DTYPE = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


@dataclass(frozen=True, slots=True)
class Option:
    """An argument of a region: its constant value, or the expression that gives it at run time."""

    value: object = None
    expression: ast.expr | None = None

    @property
    def constant(self) -> bool:
        return self.expression is None


@dataclass(frozen=True, slots=True)
class LintedRegion:
    """A call that makes a region. An option that is left out is a constant None, or True for `enabled`."""

    call: ast.Call
    device: Option
    dtype: Option
    enabled: Option
    cache_enabled: Option

    @property
    def disabled(self) -> bool:
        """Return whether it is always disabled."""
        return self.enabled.constant and self.enabled.value is False

    @property
    def own_dtype(self) -> bool:
        """Return whether it names a dtype that is not its device type's default."""
        default = _DTYPE.get(DEFAULTS.get(str(self.device.value), ""))
        return self.dtype.constant and self.dtype.value not in (None, default)

    @property
    def default_dtype(self) -> bool:
        """Return whether it takes the dtype of the region around it, which compilers fix."""
        return self.dtype.constant and self.dtype.value is None and not self.disabled

    @property
    def unsupported(self) -> bool:
        """Return whether eager mode warns of its dtype and disables it. CUDA takes any dtype."""
        named = self.dtype.constant and self.dtype.value is not None
        return named and self.dtype.value not in _LOW and self.device.value != "cuda"

    def varying(self) -> tuple[str, ...]:
        """Return the options that are not constant."""
        named = {"enabled": self.enabled, "dtype": self.dtype, "device_type": self.device}
        return tuple(name for name, option in named.items() if not option.constant)


def region(names: Names, expression: ast.AST) -> LintedRegion | None:
    """Return the region that an expression makes; None where it makes none."""
    if not isinstance(expression, ast.Call):
        return None
    name = names.dotted(expression.func)
    if name not in _GENERIC and name not in _OF_DEVICE:
        return None
    order = _OPTIONS if name in _GENERIC else _OLD_OPTIONS
    given: dict[str, Option] = {}
    for option, argument in zip(order, expression.args, strict=False):
        given[option] = _option(names, argument)
    for keyword in expression.keywords:
        # **options hides which options there are; those that are not named are then unknown.
        for option in (keyword.arg,) if keyword.arg else set(order) - set(given):
            given[option] = _option(names, keyword.value)
    device = Option(_OF_DEVICE[name]) if name in _OF_DEVICE else given.get("device_type", Option())
    return LintedRegion(
        expression,
        device,
        given.get("dtype", Option()),
        given.get("enabled", Option(True)),
        given.get("cache_enabled", Option()),
    )


def _option(names: Names, expression: ast.expr, depth: int = 0) -> Option:
    if isinstance(expression, ast.Constant):
        return Option(expression.value)
    if names.dotted(expression).startswith("torch."):
        return Option(names.dotted(expression))
    if isinstance(expression, ast.Name) and depth < 8:
        found = names.lookup(expression.id, expression)
        # A name of the file that is bound once to a constant is one.
        if found is not None and isinstance(found[0], ast.Module) and len(found[1]) == 1:
            value = found[1][0]
            if isinstance(value, ast.expr):
                inner = _option(names, value, depth + 1)
                if inner.constant:
                    return inner
    return Option(expression=expression)
