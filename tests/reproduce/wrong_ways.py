"""Inject each mutant of a PrivateUse1 backend, check the op that notices it, and run the program that the check writes.

python tests/reproduce/wrong_ways.py   prints, for each mutant, what the check says and what its program prints, as JSON
"""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))

from partial import DEVICES, NAME

from ampcheck.checks.cases import op_cases
from ampcheck.checks.kinds import check_of
from ampcheck.errors import Broken
from ampcheck.spec.case import Case
from tests.faults import matrix
from tests.faults.backends import MUTANTS

RIGHT = ("eager/downcast/mm-fp32-fp16-partial", "autograd/downcast/mm-fp32-grad-fp16-partial")


def found(key: str, expected: str) -> dict[str, Any]:
    """Return what a check says of a case, which is to have a status, and what its program prints."""
    case, status = _case(key), "fail"
    check = check_of(case)
    assert check is not None
    try:
        differences = check.run(case, DEVICES[0])
    except Broken as broken:
        status, differences = "broken", broken.differences
    program = check.program(case, DEVICES[0], "\n".join(differences), ("partial",))
    printed, names = io.StringIO(), dict[str, Any](__name__="__main__")
    with contextlib.redirect_stdout(printed), contextlib.ExitStack() as left:
        # A program may enter a mode for good; a mode that only the garbage collector leaves changes a later call.
        left.callback(lambda: names["mode"].__exit__(None, None, None) if "mode" in names else None)
        exec(compile(program, "program", "exec"), names)
    return {
        "status": status if differences else "pass",
        "expected": expected,
        "differences": differences,
        "printed": printed.getvalue(),
        "lines": len(program.splitlines()),
        "names ampcheck": "ampcheck" in program,
    }


def _case(key: str) -> Case:
    suite, rule, name = key.split("/")
    return next(case for case in op_cases(DEVICES[0], rule, suite) if case.id == name)


def main() -> dict[str, dict[str, Any]]:
    """Check each op that notices a mutant."""
    out = {key: found(key, "pass") for key in RIGHT}
    inject = {mutant.name: mutant.inject for mutant in MUTANTS}
    for kill in matrix.read():
        if kill.device == NAME and kill.mutant in inject and kill.rule.partition("/")[2] in matrix.OPS:
            with inject[kill.mutant](NAME):
                out[kill.mutant] = found(kill.case, kill.status)
    return out


if __name__ == "__main__":
    print(json.dumps(main()))
