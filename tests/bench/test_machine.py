"""The machine in a file's header."""

from __future__ import annotations

import getpass
import json
import os
import platform
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ampcheck.bench.core import machine

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


def test_this_machine() -> None:
    found = machine.describe()
    assert found["model"]
    assert 1 <= found["cores"] <= found["cores_total"]
    assert found["threads"] == torch.get_num_threads()
    assert found["memory"] > 2**28
    assert found["matmul_precision"] == "highest"
    json.dumps(found)


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


def test_precision_settings_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise RuntimeError("mix of the legacy and new APIs")

    config = SimpleNamespace(jax_default_matmul_precision="highest")
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(config=config))
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    found = machine.describe()
    assert (found["jax_default_matmul_precision"], found["matmul_precision"]) == ("highest", "medium")
    config.jax_default_matmul_precision = None
    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    found = machine.describe()
    assert (found["jax_default_matmul_precision"], found["matmul_precision"]) == ("default", "mixed settings")


def test_identity_is_of_the_hardware() -> None:
    some = {"model": "AMD EPYC", "architecture": "x86_64", "cores": 2, "isa": ["avx2", "avx512f"], "load": 0.1}
    name = machine.identity(some)
    assert len(name) == 8
    assert machine.identity({**some, "load": 9, "threads": 1, "isa": ["avx512f", "avx2"]}) == name
    for other in ({"model": "Xeon"}, {"cores": 4}, {"isa": ["avx2"]}, {"architecture": "variant64"}):
        assert machine.identity({**some, **other}) != name


def test_a_busy_machine_is_warned_of() -> None:
    assert machine.busy({"load": 0.4, "cores": 2}) == ""
    assert machine.busy({"cores": 2}) == ""
    warning = machine.busy({"load": 1.5, "cores": 2})
    assert warning == "the machine was busy before the run (load 1.5 on 2 cores): expect wide intervals"
