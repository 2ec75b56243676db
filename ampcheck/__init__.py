"""Does automatic mixed precision on a PyTorch device do what PyTorch promises, and what does it gain?

`ampcheck.doctor` finds what is wrong with the mixed precision of your own program, `ampcheck.trace` shows what autocast
does to it, `ampcheck.watch` why a GradScaler skips its steps; `ampcheck.step` marks a step that `ampcheck bench advise`
times. The command line is `ampcheck`; see `ampcheck --help`. Importing this package imports neither torch nor jax.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampcheck.bench.advise.user_step import step
    from ampcheck.tools.doctor import doctor
    from ampcheck.tools.lint.compare import check_scripted
    from ampcheck.tools.trace import trace
    from ampcheck.tools.watch import watch

__all__ = ["check_scripted", "doctor", "step", "trace", "watch"]

_HOME = {
    "check_scripted": "ampcheck.tools.lint.compare",
    "doctor": "ampcheck.tools.doctor",
    "step": "ampcheck.bench.advise.user_step",
    "trace": "ampcheck.tools.trace",
    "watch": "ampcheck.tools.watch",
}
"""Where each public name is made; it is imported when first asked for, because that imports torch."""


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'ampcheck' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
