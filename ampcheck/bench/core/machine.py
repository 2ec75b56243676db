"""Describe what decides a machine's speed, for the header of a benchmark file; no names of hosts, users or paths."""

import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

BUSY = 0.5
"""A load average above this share of the cores is too much for a benchmark."""

_ISA = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "avx_ne_convert")
_NO_PATH = re.compile(r"--?xla_\w+(=[\w.,:+-]*)?")
"""Flags of XLA, but those that have a path for a value."""
# What Linux calls an ARM processor's features, by what they are.
_VARIANT = {"asimd": "neon", "asimdhp": "neon_fp16", "bf16": "bf16", "sve": "sve", "svebf16": "sve_bf16", "sme": "sme"}


def describe(proc: Path = Path("/proc"), system: Path = Path("/sys")) -> dict[str, Any]:
    """Return the machine and the settings that decide how fast it computes; what cannot be found out is left out.

    `model`, `architecture`, `cores` (that this process may use), `cores_total`, `isa`, `memory` (bytes), `load` (the
    last minute's average, before the run), `governor`, `threads`, `interop_threads`, `blas_threads`, `xla_flags`,
    `matmul_precision` and so on.
    """
    model, isa = processor((proc / "cpuinfo").read_text() if (proc / "cpuinfo").exists() else "")
    found: dict[str, Any] = {
        "model": model or _darwin_model() or platform.machine(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cores_total": os.cpu_count(),
        "isa": isa,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "memory": _memory(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "governor": _line(system / "devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "blas_threads": {n: os.environ[n] for n in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if n in os.environ},
        "xla_flags": [flag for flag in os.environ.get("XLA_FLAGS", "").split() if _NO_PATH.fullmatch(flag)],
        **_matmul(),
    }
    return {name: value for name, value in found.items() if value not in (None, "", {}, [])}


def identity(described: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that stay the same on a machine and differ between unlike ones.

    Made of processor, usable cores and instruction sets, so figures with the same identity may be compared. A load,
    a version or a number of threads does not change it.
    """
    parts = [str(described.get(name, "")) for name in ("model", "architecture", "cores")]
    text = "|".join([*parts, ",".join(sorted(described.get("isa", [])))])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def busy(described: Mapping[str, Any]) -> str:
    """Return a warning where the machine had other work before the run, "" where it had not or nobody knows."""
    load, cores = described.get("load"), described.get("cores")
    if load is None or not cores or load <= BUSY * cores:
        return ""
    plural = "core" if cores == 1 else "cores"
    return f"the machine was busy before the run (load {load:g} on {cores} {plural}): expect wide intervals"


def processor(cpuinfo: str) -> tuple[str, list[str]]:
    """Return the model and the instruction sets that matter here, out of what Linux says in /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip().lower(), value.strip())
    flags = fields.get("flags", "").split()
    features = fields.get("features", "").split()
    isa = [name for name in _ISA if name in flags] + [name for flag, name in _VARIANT.items() if flag in features]
    maker, part, variant = (fields.get(f"cpu {name}", "") for name in ("implementer", "part", "variant"))
    arm = f"ARM implementer {maker} part {part} variant {variant}" if maker else ""  # which has no name
    return fields.get("model name") or fields.get("hardware") or arm, isa


def _darwin_model() -> str:
    if sys.platform != "darwin":
        return ""
    command = ["sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=5).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not every system has these
        return None


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _matmul() -> dict[str, Any]:
    """Describe how float32 products may be shortened."""
    found: dict[str, Any] = {}
    for name, read in (
        ("matmul_precision", torch.get_float32_matmul_precision),
        ("cuda_matmul_tf32", lambda: torch.backends.cuda.matmul.allow_tf32),
        ("cudnn_tf32", lambda: torch.backends.cudnn.allow_tf32),
    ):
        try:
            found[name] = read()
        except RuntimeError:  # torch refuses to say where its old and its new settings were mixed
            found[name] = "mixed settings"
    if jax := sys.modules.get("jax"):
        found["jax_default_matmul_precision"] = jax.config.jax_default_matmul_precision or "default"
    return found
