"""The operators of rewritten programs: the library built with this package, else the same ones in Python.

The library's file name holds the torch version it was built for. It is not loaded into another one, whose classes may
lie in memory in another way. The operators of csrc/autocast_ops.cpp in Python are for an installation without that
library; the dispatcher has no variadic operators, so there are only the fixed forms.
"""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import TypeGuard

import torch

from ampcheck.torchscript.torch_private import schemas_of

FIXED_FORMS = 8
"""The longest fixed form of an operator that is variadic in the library."""

_LIBRARY: list[torch.library.Library] = []  # what is registered lives as long as the object


def reaches(value: object, device_type: str) -> TypeGuard[torch.Tensor]:
    """Return whether a tensor makes the dispatcher enter the autocast kernel of a device type."""
    return isinstance(value, torch.Tensor) and value.device.type == device_type


def eligible(value: object, device_type: str) -> TypeGuard[torch.Tensor]:
    """Return whether autocast casts a value: a floating tensor other than float64 on the device type."""
    return reaches(value, device_type) and value.is_floating_point() and value.dtype != torch.float64


def _cast(value: object, device_type: str, dtype: torch.dtype) -> object:
    if isinstance(value, (list, tuple)):
        return [_cast(item, device_type, dtype) for item in value]
    return value.to(dtype) if eligible(value, device_type) else value


def _returned(values: Sequence[object]) -> object:
    return values[0] if len(values) == 1 else tuple(values)


def autocast_cast(device_type: str, enabled: bool, dtype: torch.dtype, *values: object) -> object:
    """Policies lower_precision_fp and fp32: the values, eligible tensors cast."""
    return _returned([_cast(v, device_type, dtype) for v in values] if enabled else values)


def autocast_promote(device_type: str, enabled: bool, *values: object) -> object:
    """Policy promote: the values, eligible tensors cast to the widest dtype among them."""
    flat = [item for value in values for item in (value if isinstance(value, (list, tuple)) else [value])]
    dtypes = {item.dtype for item in flat if eligible(item, device_type)}
    if not enabled or not dtypes:
        return _returned(values)
    # Of two different ones neither holds the other's values, unless one of them is float32.
    widest = dtypes.pop() if len(dtypes) == 1 else torch.float32
    return _returned([_cast(value, device_type, widest) for value in values])


def autocast_set(device_type: str, enabled: bool, dtype: torch.dtype, *values: object) -> object:
    """Set this thread's state, and return the values."""
    torch.set_autocast_enabled(device_type, enabled)
    torch.set_autocast_dtype(device_type, dtype)
    return _returned(values) if values else None


def autocast_opt_dtype(
    device_type: str, enabled: bool, first: torch.Tensor, dtype: torch.dtype | None
) -> torch.dtype | None:
    """Policy fp32_set_opt_dtype: the `dtype=` the op is to have."""
    return torch.float32 if dtype is None and enabled and eligible(first, device_type) else dtype


def autocast_append_dtype(device_type: str, first: torch.Tensor) -> torch.dtype:
    """Policy fp32_append_dtype: the `dtype=` the op is to have."""
    return torch.float32 if eligible(first, device_type) else first.dtype


def autocast_reached(device_type: str, enabled: bool, values: Sequence[torch.Tensor | None]) -> bool:
    """Return whether autocast is enabled and the dispatcher would enter its kernel."""
    return enabled and any(reaches(value, device_type) for value in values)


def autocast_banned(device_type: str, enabled: bool, values: Sequence[torch.Tensor | None], message: str) -> None:
    """Policy banned. Raises RuntimeError with the message."""
    if autocast_reached(device_type, enabled, values):
        raise RuntimeError(message)


def autocast_done() -> None:
    """Keep TorchScript from joining the op before with those behind in a formula for the gradient."""


def autocast_opaque(value: float) -> float:
    """Return the number, which is then not known before the program runs."""
    return value


def autocast_ambient(device_type: str) -> tuple[bool, torch.dtype]:
    """Return this thread's state: enabled and dtype."""
    return torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)


def _place(device: str, device_types: Sequence[str]) -> int:
    if device not in device_types:
        raise RuntimeError(f"this program was not rewritten for regions on {device}; name it in device_type")
    return device_types.index(device)


def autocast_dtype(device_types: Sequence[str], dtypes: Sequence[int], device: str) -> int:
    """Return the dtype of a device type. Raises RuntimeError for an unknown device."""
    return dtypes[_place(device, device_types)]


def autocast_region(
    device_types: Sequence[str],
    device_type: str,
    device: str,
    enabled: bool,
    dtype: torch.dtype,
    outer_enabled: bool,
    outer_dtype: torch.dtype,
) -> tuple[bool, torch.dtype]:
    """Return one device type's state inside a region on `device`. Raises RuntimeError for an unknown device."""
    _place(device, device_types)
    if device != device_type:
        return outer_enabled, outer_dtype
    if enabled and device_type == "cpu" and dtype not in (torch.bfloat16, torch.float16):
        warnings.warn("In CPU autocast, but the target dtype is not supported. Disabling autocast.", stacklevel=2)
        enabled = False
    return enabled, dtype


def _family(name: str, leading: str, *, annotated: bool) -> list[str]:
    """Return the schemas of an operator that takes tensors, the last of them optional or not, and returns as many.

    `annotated`: whether they say that a result may be the argument itself.
    """
    out = [f"{name}.list({leading}, Tensor[] x) -> Tensor[]"]
    for form in "to":
        for count in range(FIXED_FORMS + 1):
            alias = [f"({letter})" if annotated else "" for letter in ascii_lowercase]
            types = [f"Tensor{alias[place]}" for place in range(count)]
            types += [f"Tensor{alias[count]}?"] if form == "o" else []
            values = "".join(f", {type_} x{place}" for place, type_ in enumerate(types))
            out.append(f"{name}.{form}{count}({leading}{values}) -> ({', '.join(types)})")
    return out


_STATE = "str device_type, bool enabled"


def register() -> None:
    """Register the operators in this process, once."""
    if _LIBRARY:
        return
    library = torch.library.Library("amp", "FRAGMENT")
    _LIBRARY.append(library)

    def add(schema: str, body: Callable[..., object], alias_analysis: str) -> None:
        library.define(schema, alias_analysis=alias_analysis)
        library.impl(schema.partition("(")[0], body, "CompositeImplicitAutograd")

    families: tuple[tuple[Callable[..., object], str, str], ...] = (
        (autocast_cast, f"{_STATE}, ScalarType dtype", ""),
        (autocast_promote, _STATE, ""),
        (autocast_set, f"{_STATE}, ScalarType dtype", "CONSERVATIVE"),
    )
    for body, leading, alias_analysis in families:
        for schema in _family(body.__name__, leading, annotated=not alias_analysis):
            add(schema, body, alias_analysis)
    region = "str[] device_types, str device_type, str device, bool enabled, ScalarType dtype"
    others: tuple[tuple[Callable[..., object], str, str], ...] = (
        (autocast_opt_dtype, f"({_STATE}, Tensor first, ScalarType? dtype) -> ScalarType?", ""),
        (autocast_append_dtype, "(str device_type, Tensor first) -> ScalarType", ""),
        (autocast_reached, f"({_STATE}, Tensor?[] values) -> bool", "CONSERVATIVE"),
        (autocast_banned, f"({_STATE}, Tensor?[] values, str message) -> ()", "CONSERVATIVE"),
        (autocast_done, "() -> ()", "CONSERVATIVE"),
        (autocast_opaque, "(Scalar value) -> Scalar", "CONSERVATIVE"),
        (autocast_ambient, "(str device_type) -> (bool enabled, ScalarType dtype)", "CONSERVATIVE"),
        (autocast_dtype, "(str[] device_types, int[] dtypes, str device) -> int", ""),
        (
            autocast_region,
            f"({region}, bool outer_enabled, ScalarType outer_dtype) -> (bool enabled, ScalarType dtype)",
            "CONSERVATIVE",
        ),
    )
    for body, signature, alias_analysis in others:
        add(body.__name__ + signature, body, alias_analysis)


FOLDER = Path(__file__).parent
_PREFIX = "_operators-torch"


def load(folder: Path = FOLDER) -> str:
    """Register the operators in this process and return, in a sentence, which ones they are.

    Warns where the library was built for another torch.
    """
    wanted = folder / f"{_PREFIX}{torch.__version__}.so"
    if wanted.exists():
        torch.ops.load_library(wanted)
        return f"the library of operators built for torch {torch.__version__}"
    others = sorted(path.stem.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*.so"))
    register()
    if others:
        why = f"the library was built for torch {', '.join(others)} and this is torch {torch.__version__}"
        warnings.warn(f"{why}; ampcheck.torchscript uses operators written in Python", stacklevel=2)
    else:
        why = "no library was built when ampcheck was installed, for want of a C++ compiler or of torch"
    return f"operators written in Python: {why}"


def variadic() -> bool:
    """Return whether the operators take any number and mixture of values, as those of the library do."""
    return any("(...)" in str(schema) for schema in schemas_of("amp::autocast_promote"))
