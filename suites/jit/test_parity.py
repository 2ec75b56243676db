"""Rule parity: a random program with regions does compiled what it does eagerly.

A case has a front end: TorchScript, tracing, torch.compile, torch.export or XLA. Its programs come from a fixed seed. A
`--nightly` run adds many, from the seed that `--hypothesis-seed` gives or else from the day's date, which is in the run
file. Source: https://docs.pytorch.org/docs/2.13/export.html and torch/csrc/jit/JIT-AUTOCAST.md.
"""

import pytest

from ampcheck.programs.compiled import FUZZED, Fuzzer, text_of
from ampcheck.programs.search import Search
from ampcheck.runner.suite import DeviceAmp, scenario

pytestmark = pytest.mark.rule("parity")


def _explore(amp: DeviceAmp, compiler: str, request: pytest.FixtureRequest) -> None:
    fuzzer = Fuzzer(amp.device, compiler, Search.of(request.config.option))
    if found := fuzzer.explore():
        amp.differences.append(f"{found[0]}, of\n{found[1].text}")
        amp.script = text_of(found[1], compiler, amp.device)
    amp.looked_at += fuzzer.compared


@scenario(compiler=["script"], types=("cpu", "cuda"), values=True, dtypes="default")
def test_drawn_for_jit(amp: DeviceAmp, compiler: str, request: pytest.FixtureRequest) -> None:
    """A scripted program acts as in eager mode (JIT-AUTOCAST.md); TorchScript's autocast knows CPU and CUDA."""
    _explore(amp, compiler, request)


@scenario(
    compiler=[compiler for compiler in FUZZED if compiler not in ("script", "jaxjit")], values=True, dtypes="default"
)
def test_drawn(amp: DeviceAmp, compiler: str, request: pytest.FixtureRequest) -> None:
    """A traced, compiled or exported program acts as in eager mode (torch/amp/autocast_mode.py; export.html)."""
    _explore(amp, compiler, request)


@scenario(types=("jax",), values=True, dtypes="default")
def test_drawn_for_xla(amp: DeviceAmp, request: pytest.FixtureRequest) -> None:
    """A program that is compiled as a whole acts as in eager mode (docs/jax_device.md)."""
    _explore(amp, "jaxjit", request)
