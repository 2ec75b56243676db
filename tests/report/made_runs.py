"""Made-up run files to fill a site with."""

import random
from pathlib import Path
from typing import Any

from ampcheck.runner.record import Result, RunWriter

CPU = {"name": "cpu", "token": "cpu", "type": "cpu", "key": "AutocastCPU", "has_values": True, "processor": "x86_64"}
CUDA = {"name": "virtual:cuda", "token": "vcu", "type": "cuda", "key": "AutocastCUDA", "has_values": False}
HEADER = {
    "started": "2026-11-20T02:00:00Z",
    "command": ["pytest", "suites"],
    "manifest": "abc",
    "seed": 0,
    "nightly": False,
    "versions": {"python": "3.11.7", "torch": "2.13.0+cpu"},
    "devices": [CPU, CUDA],
    "absent": {"cuda": "no CUDA device was found"},
    "machine": {"system": "Linux", "cores": 2},
}


def make(op: str, status: str = "pass", *, device: str = "cpu", rule: str = "promote", **fields: Any) -> Result:
    """A result of an op case, bf16 inputs under a bf16 region unless told otherwise."""
    token = {"virtual:cuda": "vcu"}.get(device, device)
    inputs, amp = fields.pop("inputs", "bf16"), fields.pop("amp", "bf16")
    name = f"{op}-{inputs}-{amp}-{token}"
    values = {"id": name, "suite": "eager", "rule": rule, "op": op, "inputs": inputs, "amp": amp, "device": device}
    return Result(**{**values, "status": status, "seconds": 0.001, **fields})


def write(path: Path, results: list[Result], *, footer: bool = True, **header: Any) -> Path:
    writer = RunWriter(path, {**HEADER, "cases": len(results), **header})
    for result in results:
        writer.add(result)
    writer.close({"seconds": 1.5, "stale": []})
    if not footer:
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    return path


def many(count: int, seed: int) -> list[Result]:
    """Return results on eight devices, one in eight not as promised."""
    random_ = random.Random(seed)
    inputs = ("fp32", "bf16", "fp16", "fp64", "int64", "bool", "bf16_fp32", "fp32_bf16", "fp16_bf16")
    out = []
    for number in range(count):
        device = f"device{number % 8}"
        status = random_.choices(("pass", "deviation", "unsupported", "fail"), (88, 9, 2, 1))[0]
        op = f"operator_{number // 144:03}"
        fields: dict[str, Any] = {"inputs": inputs[number // 16 % 9], "amp": ("bf16", "fp16")[number // 8 % 2]}
        if status != "pass":
            fields |= {
                "message": f"argument 1 of aten::{op} got torch.bfloat16; expected torch.float32 (rule promote)",
                "torch": f"import torch\n\na = torch.randn(2, 3).to('{device}')\nprint(torch.ops.aten.{op}(a))",
                "deviation": "promote-mixed-low" if status == "deviation" else "",
            }
        out.append(make(op, status, device=device, **fields))
    return out
