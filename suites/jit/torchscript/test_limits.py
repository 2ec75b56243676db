"""Rule limits: a scripted or traced program does in and around regions what it does eagerly, or is refused clearly.

TorchScript does not support everything that torch.autocast does. PyTorch documents the limitations in
torch/csrc/jit/JIT-AUTOCAST.md; others follow from torch/csrc/jit/passes/autocast.cpp. The programs are in
ampcheck/tools/lint/limits.toml.
"""

import subprocess
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario
from ampcheck.tools.lint.cases import check, check_found, limits, of_limit

pytestmark = pytest.mark.rule("limits")

SCRIPTED = limits("script")
"""Programs that are scripted, by name; eager mode says what is right."""
TRACED = limits("traced")
"""Programs that are traced, by name."""


# ---- scripted
@scenario(
    name=SCRIPTED,
    types=("cpu", "cuda"),
    values=True,
    dtypes="default",
    program=lambda amp, name: of_limit(SCRIPTED[name], amp),
)
def test_jit(amp: Amp, name: str) -> None:
    """A scripted region acts as in eager mode, or is refused by an error that names it (JIT-AUTOCAST.md)."""
    check(amp, SCRIPTED[name], name)


@scenario(name=SCRIPTED, types=("cpu",), values=True, dtypes="default")
def test_jit_found(amp: Amp, name: str) -> None:
    """ampcheck's linter reports the limitations that PyTorch gives no diagnostic for (JIT-AUTOCAST.md, Diagnostics)."""
    check_found(amp, SCRIPTED[name], name)


_ASKING = """
import torch

def program(a):
    with torch.autocast({device!r}):
        return torch.mm(a, a).dtype, torch.{asked}()

compiled = torch.jit.script(program)
for _ in range(3):
    print(compiled(torch.rand(2, 2, device={device!r}))[1])
"""


@scenario(types=("cpu", "cuda"), values=True, dtypes="default")
def test_asked_in_a_region(amp: Amp) -> None:
    """A scripted function may ask whether it is in a region, its own ones included (pytorch#82394).

    In another process, which the question may end.
    """
    asked = "is_autocast_cpu_enabled" if amp.type == "cpu" else "is_autocast_enabled"
    with TemporaryDirectory() as folder:
        file = Path(folder, "program.py")
        file.write_text(_ASKING.format(device=amp.type, asked=asked), encoding="utf-8")
        command = [sys.executable, "-W", "ignore", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    amp.assert_equal("exit code of the process", done.returncode, 0)
    amp.assert_equal("the answers", done.stdout.split(), ["True"] * 3)


# ---- traced
@scenario(name=TRACED, values=True, dtypes="default", program=lambda amp, name: of_limit(TRACED[name], amp))
def test_captured(amp: Amp, name: str) -> None:
    """A traced region acts as in eager mode (JIT-AUTOCAST.md; pytorch#62043)."""
    check(amp, TRACED[name], name)


@scenario(name=TRACED, types=("cpu",), values=True, dtypes="default")
def test_found_in_captures(amp: Amp, name: str) -> None:
    """ampcheck's linter reports the limitations that PyTorch gives no diagnostic for (JIT-AUTOCAST.md, Diagnostics)."""
    check_found(amp, TRACED[name], name)


@scenario(types=("cpu", "cuda"), values=True)
def test_tracing_in_a_region(amp: Amp) -> None:
    """Tracing where casts of weights are cached is refused, and with cache_enabled=False it works (pytorch#50231)."""
    module = amp.module(lambda: torch.nn.Linear(2, 2)).requires_grad_(True)
    x = amp.rand(2, 2)

    def trace(cache_enabled: bool) -> object:
        with amp.region(cache_enabled=cache_enabled):
            return torch.jit.trace(module, (x,))

    with warnings.catch_warnings():  # TorchScript is deprecated as a whole, and a cache is not a constant
        warnings.simplefilter("ignore")
        amp.assert_raises("tracing with the cache", RuntimeError, "requires grad as a constant", lambda: trace(True))
        traced = trace(False)
        with amp.region():
            amp.assert_equal("dtype in a region", traced(x).dtype, module(x).dtype)
