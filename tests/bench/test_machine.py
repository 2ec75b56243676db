"""The machine in a file's header, the table of peaks, and what is measured where it has none."""

import getpass
import json
import os
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ampcheck.bench.core import machine
from ampcheck.bench.run import ceilings

X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9R45
flags\t\t: fpu avx avx2 avx512f avx512_bf16 amx_tile

processor\t: 1
model name\t: another
"""
VARIANT = """processor\t: 0
Features\t: fp asimd aes asimdhp sve bf16
CPU implementer\t: 0x41
CPU variant\t: 0x0
CPU part\t: 0xd4f
"""


def test_processors() -> None:
    assert machine.processor(X86) == ("AMD EPYC 9R45", ["avx2", "avx512f", "avx512_bf16"])
    model, isa = machine.processor(VARIANT)
    assert model == "ARM implementer 0x41 part 0xd4f variant 0x0"
    assert isa == ["neon", "neon_fp16", "bf16", "sve"]
    assert machine.processor("") == ("", [])


def test_files_are_read_where_a_system_has_them(tmp_path: Path) -> None:
    elsewhere = machine.describe(tmp_path, tmp_path)
    assert elsewhere["model"]
    assert not {"governor", "isa"} & set(elsewhere)
    governor = tmp_path / "devices/system/cpu/cpu0/cpufreq/scaling_governor"
    governor.parent.mkdir(parents=True)
    governor.write_text("powersave\n")
    (tmp_path / "cpuinfo").write_text(X86)
    found = machine.describe(tmp_path, tmp_path)
    assert (found["governor"], found["model"]) == ("powersave", "AMD EPYC 9R45")


def test_nothing_private_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "--xla_dump_to=/home/somebody/dump --xla_cpu_use_onednn=true --xla_force_host_platform_device_count=8 junk"
    monkeypatch.setenv("XLA_FLAGS", flags)
    found = machine.describe()
    assert found["xla_flags"] == ["--xla_cpu_use_onednn=true", "--xla_force_host_platform_device_count=8"]
    text = json.dumps(found)
    assert "somebody" not in text
    assert platform.node() not in text
    words = {value for value in found.values() if isinstance(value, str)}
    assert not {getpass.getuser(), os.getcwd()} & words


def test_identity_is_of_the_hardware() -> None:
    some = {"model": "AMD EPYC", "architecture": "x86_64", "cores": 2, "isa": ["avx2", "avx512f"], "load": 0.1}
    name = machine.identity(some)
    assert "load 1.5 on 2 cores" in machine.busy({**some, "load": 1.5})
    assert machine.identity({**some, "load": 9, "threads": 1, "isa": ["avx512f", "avx2"]}) == name
    for other in ({"model": "Xeon"}, {"cores": 4}, {"isa": ["avx2"]}, {"architecture": "variant64"}):
        assert machine.identity({**some, **other}) != name


# ---- peaks


@pytest.mark.parametrize(
    ("name", "device", "bf16"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 989e12),
        ("NVIDIA H100 PCIe", "H100 PCIe", 756e12),
        ("NVIDIA H200", "H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80 GB", 312e12),
        ("Tesla V100-SXM2-16GB", "V100 SXM2", None),
        ("NVIDIA A10", "A10", 125e12),
        ("TPU v4", "TPU v4", 275e12),
        ("TPU v5 lite", "TPU v5e", 197e12),
        ("TPU v5p", "TPU v5p", 459e12),
        ("TPU v5", "TPU v5p", 459e12),
        ("TPU v6 lite", "TPU v6e", 918e12),
        ("TPU7x", "TPU v7x", 2307e12),
    ],
)
def test_known_devices(name: str, device: str, bf16: float | None) -> None:
    found = ceilings.known(name)
    assert (found.device, found.of("bf16"), found.measured) == (device, bf16, False)


@pytest.mark.parametrize(
    ("device", "rates"),
    [
        ("NVIDIA H200", {"fp32": 67e12, "tf32": 495e12, "bf16": 989e12, "fp16-native": 989e12, "fp32-default": 495e12}),
        ("TPU v6e", {"fp32-default": 918e12, "fp32": None, "with": None}),  # nobody publishes float32's
    ],
)
def test_a_precision_s_peak(device: str, rates: dict[str, float | None]) -> None:
    assert {name: ceilings.known(device).of(name) for name in rates} == rates


class Scripted:
    """A clock that gives the times it was told."""

    def __init__(self, *times: float) -> None:
        self.times = iter(times)

    def sample(self, call: Callable[[], Any], count: int) -> tuple[float, float]:
        call()
        return next(self.times), 0.0


def test_the_best_of_all_loads_is_the_ceiling() -> None:
    loads = [("fp32", 8.0, int), ("fp32", 64.0, int), ("bandwidth", 6.0, int)]
    times = [9, 4, 2, 4, 9, 8, 8, 8, 9, 3, 2, 3]  # the first of each four warms up
    found = ceilings.measure(Scripted(*times), loads, "here", seconds=0)
    assert (found.of("fp32"), found.bandwidth, found.measured) == (8.0, 3.0, True)
    assert found.of("bf16") is None


def test_a_load_that_would_take_too_long_is_left_out() -> None:
    """As with bf16 on a processor without it: a small product is fast enough, the next one a hundred times slower."""
    called: list[float] = []
    loads = [("bf16", size, partial(called.append, size)) for size in (8.0, 64.0)]
    quick = ceilings.measure(Scripted(1e-3, *[1e-4] * 100_000), loads, "here", seconds=1e-2)
    assert 64.0 in called
    called.clear()
    slow = ceilings.measure(Scripted(*[0.5] * 100_000), loads, "here", seconds=1e-2)
    assert set(called) == {8.0}
    assert quick.flops == {"bf16": pytest.approx(64e4)}
    assert slow.flops == {"bf16": pytest.approx(16)}
