"""Estimates of programs that are compiled: for the CPU anywhere, for a TPU where libtpu is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from ampcheck.bench.tpu import command
from ampcheck.bench.workloads import catalogue
from tests.cli_support import LIMIT, ROOT

needs_libtpu = pytest.mark.skipif(command.available() is not None, reason=str(command.available()))

CPU = """
import dataclasses, json
import jax, torch
import ampcheck.jax_device
from ampcheck.bench.core.model import PRECISIONS, Variant
from ampcheck.bench.core.prepare import prepare
from ampcheck.bench.tpu.variants import variant_result
from ampcheck.bench.tpu.chips import TPUS
from ampcheck.bench.tpu.estimate import compiled, lower
from ampcheck.bench.workloads import catalogue

mm = catalogue()["mm-64"]
ready = prepare(mm, Variant(PRECISIONS["fp32"]), "jax", "jit")
with jax.default_matmul_precision("highest"):
    function, structs = ready.jitted.program(*ready.arguments)
found = compiled(lower(function, structs, jax.devices("cpu")[0], "cpu"), TPUS["v5e"])
variant = variant_result(mm, PRECISIONS["fp32"], found, TPUS["v5e"])
print(json.dumps([found.source, found.flops, found.arguments, found.outputs, dataclasses.asdict(variant)]))
"""

TRACED = """
import json
import jax, torch
import ampcheck.jax_device
from ampcheck.bench.tpu.estimate import traced_for
from ampcheck.jax_device import jit

def text(x):
    function, structs = jit(lambda a: a @ a).program(x)
    return function.trace(*structs).lower(lowering_platforms=("tpu",)).as_text()

low = [torch.ones(n, n, dtype=torch.bfloat16, device="jax") for n in (4, 5)]
with traced_for("tpu"):
    found = [text(low[0])]
found.append(text(low[1]))
print(json.dumps(["f32" in t for t in found] + [jax.default_backend()]))
"""

PLANTED = """
import json
from ampcheck.bench.core.model import PRECISIONS
from ampcheck.bench.tpu.variants import contradicts
from ampcheck.bench.tpu.estimate import estimate
from ampcheck.bench.workloads import catalogue

mm = catalogue()["mm-64"]
found = {name: estimate(mm, PRECISIONS[name], "v5e") for name in ("fp32", "fp32-default", "bf16")}
print(json.dumps([contradicts(mm, PRECISIONS[named], found[real]) for named, real in (
    ("bf16", "fp32"), ("fp32", "fp32-default"), ("fp32", "bf16"), ("fp32", "fp32"), ("bf16", "bf16"))]))
"""


def run(script: str) -> Any:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_compiler_that_says_no_cycles() -> None:
    source, flops, arguments, outputs, variant = run(CPU)
    assert (source, flops, arguments, outputs) == ("roofline", 2 * 64**3, 2 * 64 * 64 * 4, 64 * 64 * 4)
    assert variant["seconds"] == pytest.approx(3 * 64 * 64 * 4 / command.TPUS["v5e"].bandwidth, rel=0.5)
    assert "products: 1 × fp32" in variant["precision_check"]
    assert "the larger" in variant["precision_check"]


def test_what_is_for_a_cpu_only_is_not_in_the_program() -> None:
    assert run(TRACED) == [False, True, "cpu"]


@needs_libtpu
def test_an_estimate_of_each_precision() -> None:
    lines: list[str] = []
    (group,) = command.groups([catalogue()["mm-1024"], catalogue()["region-enter"]], "tpu-v5e", lines.append)
    assert (group.key, group.estimate, group.note) == ("tpu-v5e/jit/mm-1024", True, command.NOTE)
    assert len(lines) == 6
    variants = {variant.name: variant for variant in group.variants}
    assert list(variants) == list(command.VARIANTS)
    assert [variant.verdict for variant in group.variants] == ["first", *["faster"] * 4]
    for name, product in (
        ("fp32", "fp32 in 6 bf16 passes"),
        ("fp32-default", "fp32 in 1 bf16 pass"),
        ("bf16", "bf16"),
        ("fp16", "fp16"),
        ("bf16-native", "bf16"),
    ):
        assert variants[name].precision_check.startswith(f"products: 1 × {product};")
        share = variants[name].share
        assert share is not None
        assert 0 < share <= 1
    assert "casts left: 0" in variants["bf16-native"].precision_check
    assert "2 × fp32 to bf16[1024,1024]" in variants["bf16"].precision_check
    assert (variants["fp32"].memory, variants["bf16-native"].memory) == (3 * 4 * 1024**2, 3 * 2 * 1024**2)


@needs_libtpu
def test_a_program_of_another_precision_is_found_out() -> None:
    assert run(PLANTED) == [
        "no product is in bf16; there are fp32 in 6 bf16 passes",
        "a product is in fp32 in 1 bf16 pass, where float32 was asked for",
        "a product is in bf16, where float32 was asked for",
        "",
        "",
    ]
