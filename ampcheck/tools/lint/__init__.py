"""A linter for training code and for autocast annotations under TorchScript, tracing, fx and export.

    lint_source(text, "model.py")             # reads only; `ampcheck lint model.py` on the command line
    ampcheck.check_scripted(model, x)         # compiles and runs, in each autocast state

`rules` says what the linter looks for; `names` and `program` read a file, `events` and `training`
its training loops, `static` joins them; `fix` rewrites deprecated names;
`torchscript` has all that concerns TorchScript alone. `compare` compiles and runs. Importing this package imports no
torch.
"""

from ampcheck.tools.lint.rules import RULES, Diagnostic, LintRule, TrainingReport
from ampcheck.tools.lint.static import NAMED, TRAINING, Read, Report, find, lint_files, lint_source

__all__ = ["NAMED", "RULES", "TRAINING", "Diagnostic", "LintRule", "Read", "Report", "TrainingReport"]
__all__ += ["find", "lint_files", "lint_source"]
