"""A linter for autocast annotations under TorchScript, tracing, fx and export, and a check that runs both programs.

    lint_source(text, "model.py")             # reads only; `ampcheck lint model.py` on the command line
    ampcheck.check_scripted(model, x)         # compiles and runs, in each autocast state

`rules` says what the linter looks for; `names`, `program`, `regions` and `visits` read a file, `static` joins them;
`torchscript` has all that concerns TorchScript alone. `compare` compiles and runs. Importing this package imports no
torch.
"""

from __future__ import annotations

from ampcheck.tools.lint.rules import RULES, Diagnostic, LintRule
from ampcheck.tools.lint.static import find, lint_files, lint_source

__all__ = ["RULES", "Diagnostic", "LintRule", "find", "lint_files", "lint_source"]
