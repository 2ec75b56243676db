"""Reproductions for `test_programs.py`: made by a pytest run, and run where ampcheck cannot be imported.

pytest suites --device=… --collect-only -p tests.reproduce.programs   writes them to $REPRO_PROGRAMS
python -I tests/reproduce/programs.py PROGRAMS RESULTS                 runs them, one after the other
"""

import contextlib
import importlib.abc
import importlib.util
import io
import json
import os
import random
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

OPS_IN_A_RULE = {"eager": 45, "autograd": 9, "jit": 9}
"""How many cases of each rule of ops are tried on each device in each suite, and so many of a known deviation."""


def pytest_collection_finish(session: Any) -> None:
    """Write programs of scenarios in their device's default dtype, and of op cases."""
    from ampcheck.observe.recorder import exists

    found = {}
    drawn: dict[tuple[str, str, str], list[Any]] = {}
    for item in session.items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if "amp" in params:
            device, dtype = params["amp"]
            if dtype == device.default_amp:
                found[item.nodeid] = _scenario(item, device)
        elif "case" in params:
            case = params["case"]
            drawn.setdefault((case.suite, case.rule, params["device"].name), []).append((case, params["device"]))
    for cases in drawn.values():
        for case, device in _sample(cases):
            if exists(case.op):  # without its op a case is unsupported, and has no program
                found[f"suites/{case.suite}/{case.rule}/{case.id}"] = _op(case, device)
    Path(os.environ["REPRO_PROGRAMS"]).write_text(json.dumps(found), encoding="utf-8")


def _scenario(item: Any, device: Any) -> dict[str, Any]:
    """The program of a scenario, and what it finds."""
    from ampcheck.checks.scenario import ScenarioCheck
    from ampcheck.runner.collect import CASE

    check = ScenarioCheck(item.function, {name: value for name, value in item.callspec.params.items() if name != "amp"})
    # Others draw programs, by what pytest was told.
    runs = set(item.fixturenames) <= set(item.callspec.params)
    differences, raised = _found(check, item.stash[CASE], device) if runs else ([], "")
    return {"program": check.program(item.stash[CASE], device), "differences": differences, "raised": raised}


def _found(check: Any, case: Any, device: Any) -> tuple[list[str], str]:
    """The differences of a case, or else the name of what it raised."""
    from ampcheck.errors import Broken

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated ops; the suites leave these out by their text
        try:
            return check.run(case, device), ""
        except Broken as broken:
            return broken.differences, ""
        except Exception as error:  # a case may raise anything, and its program must raise the same
            return [], type(error).__name__


def _sample(cases: list[Any]) -> list[Any]:
    """Some op cases of one rule on one device in one suite, and some with a known deviation."""
    from ampcheck.runner.deviations import KnownDeviations
    from ampcheck.samples.op_database import SAMPLE

    deviations = KnownDeviations([cases[0][1]], [])
    own = [given for given in cases if given[0].sample != SAMPLE]
    known = [given for given in own if deviations.of(given[0].device, given[0].name)]
    count = OPS_IN_A_RULE[cases[0][0].suite]
    return [*random.Random(0).sample(own, min(count, len(own))), *known[:count]]


def _op(case: Any, device: Any) -> dict[str, Any]:
    from ampcheck.checks.kinds import check_of

    check = check_of(case)
    differences, raised = _found(check, case, device)
    program = check.program(case, device, "\n".join(differences))
    return {"program": program, "differences": differences, "raised": raised.removeprefix("Unsupported")}


class _Absent(importlib.abc.MetaPathFinder):
    """Makes ampcheck and pytest impossible to import."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in ("ampcheck", "pytest", "suites", "tests"):
            raise ImportError(f"a reproduction imports {name}")


def main(programs: Path, results: Path) -> None:
    """Run each program in a namespace and a state of its own; write what it printed and what it raised."""
    sys.meta_path.insert(0, _Absent())
    out: dict[str, dict[str, str]] = {}
    folder = results.with_suffix("")
    folder.mkdir()
    for name, given in json.loads(programs.read_text(encoding="utf-8")).items():
        out[name] = outcome(given["program"], folder / f"program{len(out)}.py")
    results.write_text(json.dumps(out), encoding="utf-8")


def outcome(program: str, file: Path) -> dict[str, str]:
    """What a program prints and what it raises. `file`: where to write it, for its source is asked for."""
    import torch

    defaults = {name: torch.get_autocast_dtype(name) for name in ("cpu", "cuda", "xpu", "mps", "mtia", "xla", "ipu")}
    there = torch.cuda.amp.common.amp_definitely_not_available, torch.cuda.is_bf16_supported
    printed, raised = io.StringIO(), ""
    file.write_text(program, encoding="utf-8")
    try:
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _run(file)
    except BaseException:  # whatever it raises is what is to be seen
        raised = traceback.format_exc(limit=-2)
    if mode := getattr(sys.modules[file.stem], "mode", None):  # a program may enter one for good
        mode.__exit__(None, None, None)
    _reset(torch, defaults, there)
    return {"printed": printed.getvalue(), "raised": raised}


def _run(file: Path) -> None:
    """Run a program as a file, whose source is found again, in a module of its own: Dynamo remembers names."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[file.stem])


def _reset(torch: Any, defaults: dict[str, Any], there: tuple[Any, Any]) -> None:
    """What a new process would start with: no mode entered, autocast as it was, CUDA as absent as it was."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode

    while _get_current_dispatch_mode_stack():
        _pop_mode()
    for name, dtype in defaults.items():
        torch.set_autocast_enabled(name, False)
        torch.set_autocast_dtype(name, dtype)
    torch.cuda.amp.common.amp_definitely_not_available, torch.cuda.is_bf16_supported = there
    torch.set_autocast_cache_enabled(True)
    torch.autocast_increment_nesting()
    depth = torch.autocast_decrement_nesting()
    for _ in range(abs(depth)):
        torch.autocast_decrement_nesting() if depth > 0 else torch.autocast_increment_nesting()
    torch.clear_autocast_cache()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
