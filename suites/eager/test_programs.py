"""Rule programs: a program of ops and nested regions does what the other rules say of its steps.

The programs combine regions, ops, threads, exceptions, generators and weights; `ampcheck.spec.state`, a small model of
autocast in plain Python, predicts each state, kernel dtype and cast. Random programs come from a fixed seed. A
`--nightly` run adds many, from the seed that `--hypothesis-seed` gives or else from the day's date, which is in the run
file. Source: https://docs.pytorch.org/docs/2.13/amp.html and what `ampcheck/spec/state.py` cites.
"""

import re
import tomllib
from pathlib import Path

import pytest

from ampcheck.programs.regions import RegionExplorer, program, programs, weight_programs
from ampcheck.programs.search import Search
from ampcheck.runner.suite import DeviceAmp, scenario

pytestmark = pytest.mark.rule("programs")

DRAWS = {"mixed": programs, "weights": weight_programs}


@scenario(kind=DRAWS, dtypes="default")
def test_random(amp: DeviceAmp, kind: str, request: pytest.FixtureRequest) -> None:
    """Random programs over this device and a second one (amp.html; the sources are those of ampcheck/spec/state.py)."""
    explorer = RegionExplorer(amp.device, Search.of(request.config.option))
    if found := explorer.explore(DRAWS[kind]):
        _report(amp, explorer, *found)
    amp.looked_at += explorer.compared


def _report(amp: DeviceAmp, explorer: RegionExplorer, difference: str, text: str) -> None:
    amp.differences.append(difference)
    amp.script = explorer.script(text)


PROGRAMS: dict[str, str] = tomllib.loads(Path(__file__).with_name("programs.toml").read_text("utf-8"))
_SHORT = {
    "PRODUCT": "amp.op(TYPE, torch.mm, NEW, NEW)",
    "WEIGHT": "amp.op(TYPE, torch.mm, NEW, amp.weight(TYPE, 'leaf'))",
    "HERE": "amp.autocast(TYPE, dtype=DTYPE1)",
    "OTHER": "amp.autocast(TYPE, dtype=DTYPE2)",
    "NEW": "amp.new(TYPE, torch.float32)",
}


@scenario(name=PROGRAMS, program=lambda amp, name: RegionExplorer(amp.device).script(_program(amp, name)))
def test_known(amp: DeviceAmp, name: str) -> None:
    """Programs written down: one for each kind of step, and those on which PyTorch deviates (spec/state.py)."""
    explorer, text = RegionExplorer(amp.device), _program(amp, name)
    if difference := explorer.difference(text):
        _report(amp, explorer, difference, text)
    amp.looked_at += explorer.compared


def _program(amp: DeviceAmp, name: str) -> str:
    """Return the text of a program for the device and its dtypes, with all that is written short in full."""
    text, dtypes = PROGRAMS[name], {"DTYPE1": str(amp.dtype), "DTYPE2": str(amp.other)}
    for short, full in {**_SHORT, "TYPE": repr(amp.type), **dtypes}.items():
        text = re.sub(rf"\b{short}\b", full, text)
    return program(text.splitlines())
