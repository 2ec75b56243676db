"""Rule limits: a captured program does in and around regions what it does eagerly, or is refused in clear words.

torch.fx and torch.export do not support everything that torch.autocast does. The programs are data: text with the
device and the dtypes left open, and what `ampcheck lint` finds in them. Those of TorchScript are in
`suites/jit/torchscript`.
Source: https://docs.pytorch.org/docs/2.13/export.html; pytorch#62043.
"""

import pytest

from ampcheck.runner.suite import Amp, scenario
from ampcheck.tools.lint.cases import PROGRAMS, Limit, as_module, check, check_found, of_limit

pytestmark = pytest.mark.rule("limits")

_FX = {
    "region": ("lost-in-fx",),
    "disabled": ("lost-in-fx",),
    "annotated": ("lost-in-fx",),
    "asking": ("query-frozen",),
    "setting": ("query-frozen", "state-change"),
    "custom": ("custom-fwd",),
}
_EXPORT = {
    "region": ("default-dtype",),
    "disabled": (),
    "own_dtype": (),
    "annotated": (),
    "nested": (),
    "asking": ("query-frozen",),
    "setting": ("query-frozen", "state-change"),
    "custom": ("custom-fwd",),
    "cast": (),
}
_STRICT = {name: _EXPORT[name] for name in ("region", "nested", "cast", "custom")}

CAPTURED = {
    **{f"fx_{name}": Limit("fx", PROGRAMS[name], finds) for name, finds in _FX.items()},
    **{f"export_{name}": Limit("export", as_module(PROGRAMS[name]), finds) for name, finds in _EXPORT.items()},
    **{f"strict_{name}": Limit("strict", as_module(PROGRAMS[name]), finds) for name, finds in _STRICT.items()},
}
"""Programs that are traced symbolically or exported, by name; with the rules that the linter must report."""


@scenario(name=CAPTURED, values=True, dtypes="default", program=lambda amp, name: of_limit(CAPTURED[name], amp))
def test_captured(amp: Amp, name: str) -> None:
    """An exported region acts as in eager mode (pytorch#62043; export.html)."""
    check(amp, CAPTURED[name], name)


@scenario(name=CAPTURED, types=("cpu",), values=True, dtypes="default")
def test_found_in_captures(amp: Amp, name: str) -> None:
    """ampcheck's linter reports the limitations that PyTorch gives no diagnostic for (pytorch#62043; export.html)."""
    check_found(amp, CAPTURED[name], name)
