"""Rule limits: a captured program does in and around regions what it does eagerly, or is refused in clear words.

torch.fx and torch.export do not support everything that torch.autocast does. The programs are in
ampcheck/tools/lint/limits.toml; those of TorchScript are called in `suites/jit/torchscript`.
Source: https://docs.pytorch.org/docs/2.13/export.html; pytorch#62043.
"""

import pytest

from ampcheck.runner.suite import Amp, scenario
from ampcheck.tools.lint.cases import check, check_found, limits, of_limit

pytestmark = pytest.mark.rule("limits")

CAPTURED = limits("fx") | limits("export") | limits("strict")
"""Programs that are traced symbolically or exported, by name."""


@scenario(name=CAPTURED, values=True, dtypes="default", program=lambda amp, name: of_limit(CAPTURED[name], amp))
def test_captured(amp: Amp, name: str) -> None:
    """An exported region acts as in eager mode (pytorch#62043; export.html)."""
    check(amp, CAPTURED[name], name)


@scenario(name=CAPTURED, types=("cpu",), values=True, dtypes="default")
def test_found_in_captures(amp: Amp, name: str) -> None:
    """ampcheck's linter reports the limitations that PyTorch gives no diagnostic for (pytorch#62043; export.html)."""
    check_found(amp, CAPTURED[name], name)
