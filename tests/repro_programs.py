"""Reproductions for `tests/test_repro.py`: made by a pytest run, and run where ampcheck cannot be imported.

pytest suites --device=… --collect-only -p tests.repro_programs       writes them to $REPRO_PROGRAMS
python -I tests/repro_programs.py PROGRAMS RESULTS                     runs them, one after the other
"""

from __future__ import annotations

import contextlib
import importlib.abc
import io
import json
import os
import random
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

OPS_IN_A_RULE = 45
"""How many cases of each rule of ops are tried on each device, beside those of a known deviation."""


def pytest_collection_finish(session: Any) -> None:
    """Write the program of each scenario in its device's default dtype, and of a sample of the op cases."""
    found = {}
    drawn: dict[tuple[str, str], list[Any]] = {}
    for item in session.items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if "amp" in params:
            device, dtype = params["amp"]
            if dtype == device.default_amp:
                found[item.nodeid] = _scenario(item, device, dtype)
        elif "case" in params:
            drawn.setdefault((params["case"].rule, params["device"].name), []).append(params)
    for cases in drawn.values():
        found.update(_ops(cases))
    Path(os.environ["REPRO_PROGRAMS"]).write_text(json.dumps(found), encoding="utf-8")


def _scenario(item: Any, device: Any, dtype: str) -> dict[str, Any]:
    from ampcheck.repro import of_scenario
    from ampcheck.torch_dtypes import DTYPES

    given = {name: value for name, value in item.callspec.params.items() if name != "amp"}
    differs = "programs" not in item.nodeid and _differs(item.function, device, dtype, given)
    return {"program": of_scenario(item.function, device, DTYPES[dtype], given), "differs": differs}


def _differs(body: Any, device: Any, dtype: str, given: dict[str, Any]) -> bool:
    """Whether a scenario finds something, run as the suite runs it."""
    from ampcheck.isolation import reset
    from ampcheck.scenario import Amp

    amp = Amp(device, dtype)
    reset({device.type: device.default_amp})
    try:
        with warnings.catch_warnings(), device.running():
            warnings.simplefilter("ignore")
            body(amp, **given)
    except Exception:  # a scenario fails by an exception too
        return True
    finally:
        reset({device.type: device.default_amp})
    return bool(amp.differences)


def _ops(cases: list[Any]) -> dict[str, dict[str, Any]]:
    from ampcheck.checks import Unsupported
    from ampcheck.deviations import Waivers
    from ampcheck.ops.opinfo import SAMPLE
    from ampcheck.repro import of_op
    from ampcheck.verdict import check_op

    waivers = Waivers([cases[0]["device"]], [])
    cases = [p for p in cases if p["case"].suite == "eager"]  # the other suites' programs have tests of their own
    known = [p for p in cases if waivers.of(p["case"].device, p["case"].name)]
    own = [p for p in cases if p["case"].sample != SAMPLE]
    chosen = random.Random(0).sample(own, min(OPS_IN_A_RULE, len(own)))
    found = {}
    for params in [*chosen, *known[:OPS_IN_A_RULE]]:
        case, device = params["case"], params["device"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated ops; the suites leave these out by their text
            try:
                differences = check_op(case, device)
            except Unsupported:
                differences = []
            program = of_op(case, device, "\n".join(differences))
        found[f"{case.rule}/{case.id}"] = {"program": program, "differs": bool(differences)}
    return found


class _Absent(importlib.abc.MetaPathFinder):
    """Makes ampcheck and pytest impossible to import."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in ("ampcheck", "pytest", "suites", "tests"):
            raise ImportError(f"a reproduction imports {name}")


def main(programs: Path, results: Path) -> None:
    """Run each program in a namespace and a state of its own; write what it printed and what it raised.

    A program may have a `plant`: code that breaks something before it and defines `undo`.
    """
    sys.meta_path.insert(0, _Absent())
    import torch

    warnings.simplefilter("ignore")
    defaults = {name: torch.get_autocast_dtype(name) for name in ("cpu", "cuda", "xpu", "mps", "mtia", "xla", "ipu")}
    out = {}
    for name, given in json.loads(programs.read_text(encoding="utf-8")).items():
        printed, raised = io.StringIO(), ""
        planted: dict[str, Any] = {"undo": lambda: None}
        exec(given.get("plant", ""), planted)
        try:
            with contextlib.redirect_stdout(printed):
                code = compile(given["program"], "pasted", "exec", dont_inherit=True)
                exec(code, {"__name__": "pasted"})
        except BaseException:  # whatever it raises is what is to be seen
            raised = traceback.format_exc(limit=-2)
        planted["undo"]()
        _reset(torch, defaults)
        out[name] = {"printed": printed.getvalue(), "raised": raised}
    results.write_text(json.dumps(out), encoding="utf-8")


def _reset(torch: Any, defaults: dict[str, Any]) -> None:
    """What a new process would start with: no mode entered, autocast as it was."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode

    while _get_current_dispatch_mode_stack():
        _pop_mode()
    for name, dtype in defaults.items():
        torch.set_autocast_enabled(name, False)
        torch.set_autocast_dtype(name, dtype)
    torch.set_autocast_cache_enabled(True)
    torch.autocast_increment_nesting()
    while torch.autocast_decrement_nesting() > 0:
        pass
    torch.clear_autocast_cache()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
