"""Made-up run files to fill a site with."""

import random
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ampcheck.runner.record import Result, RunWriter

HEADERS = tomllib.loads(Path(__file__).with_name("made.toml").read_text(encoding="utf-8"))


def make(op: str, status: str = "pass", *, device: str = "cpu", rule: str = "promote", **fields: Any) -> Result:
    """A result of an op case, bf16 inputs under a bf16 region unless told otherwise."""
    token = {"virtual:cuda": "vcu"}.get(device, device)
    inputs, amp = fields.pop("inputs", "bf16"), fields.pop("amp", "bf16")
    name = f"{op}-{inputs}-{amp}-{token}"
    values = {"id": name, "suite": "eager", "rule": rule, "op": op, "inputs": inputs, "amp": amp, "device": device}
    return Result(**{**values, "status": status, "seconds": 0.001, **fields})


def write(
    path: Path, results: list[Result], *, footer: bool = True, closing: Mapping[str, Any] = {}, **header: Any
) -> Path:
    """A run file of some results. `closing`: further fields of its footer, where it has one."""
    writer = RunWriter(path, {**HEADERS["runs"], "cases": len(results), **header})
    for result in results:
        writer.add(result)
    if footer:
        writer.close({"seconds": 1.5, "stale": [], **closing})
    else:
        writer.end()
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
