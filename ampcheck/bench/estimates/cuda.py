"""NVIDIA GPUs that are not there: XLA compiles for them without a driver, and its table of rates prices their products.

What the table says is put right where it is known to be wrong; docs/benchmarks.md has each correction with its reason.
"""

import importlib.util
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, ClassVar

from ampcheck.bench.estimates.program import CALLS, NO_WORK, Array, DotProduct, HloProgram, Schedule
from ampcheck.bench.run import ceilings

PRICED = ("mm-2048", "mm-4096", "mm-8192", "linear-4096", "mlp-step-4096")
"""The workloads whose time is that of large products; XLA has no figures for launches, convolutions and attention."""

_PLUGIN = "jax_plugins.xla_cuda13"
_PRODUCT = re.compile(r'custom_call_target="__cublas')
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions":\["(\d+)"\]')
_RATE = re.compile(r'"exec_time_us":([\d.e+-]+)[^{}]*"name":"sol"')
_RATED = (("bf16", "bf16"), ("f32", "f32"))
"""Dtypes of operands and result that the table has. Of others XLA counts rows, columns and depth in bytes."""
_WORKSPACE = "s8"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as XLA wants it described. Peak and bandwidth are those of `peaks.csv`.

    `model`: its name in CUDA. `capability`: its compute capability. `cores`: multiprocessors. `ghz`: their clock.
    `cache`, `memory`: bytes. `note`: what is to be known of its estimates.
    """

    model: str
    capability: int
    cores: int
    ghz: float
    cache: int
    memory: int
    note: str = ""

    platform = "gpu"
    compiled_for = "cuda"
    options: ClassVar[Mapping[str, Any]] = {
        "xla_gpu_autotune_level": 0,
        "xla_gpu_enable_triton_gemm": False,  # without autotuning it chooses tiny tiles
        "xla_gpu_collect_cost_model_stats": True,
    }
    environment: ClassVar[Mapping[str, str]] = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}  # it asks for cuDNN
    claim = (
        "XLA's program and XLA's table of rates, no GPU and no measurement; fp32-default is TF32; fp32 is at the data "
        "sheet's peak, so that speeds beside it are the least there can be"
    )

    @property
    def peaks(self) -> ceilings.Peaks:
        """Return the figures of the data sheet."""
        found = ceilings.known(self.model)
        assert found is not None, f"peaks.csv has no {self.model}"
        return found

    @property
    def flops(self) -> float:
        """Return the peak of bf16 products, operations a second."""
        return self.peaks.flops["bf16"]

    @property
    def bandwidth(self) -> float:
        """Return the bytes of memory that are moved a second."""
        return self.peaks.bandwidth or 0.0

    def device(self) -> Any:
        """Return the described device, to compile for."""
        return _device(self)

    def products(self, program: HloProgram) -> Counter[DotProduct]:
        """Count the program's products of each kind: of float32 in full, or rounded to TF32."""
        found: Counter[DotProduct] = Counter()
        for computation, instruction in program.kernels():
            if _PRODUCT.search(instruction.attributes):
                given = [computation[name].results[0].dtype for name in instruction.operands[:2]]
                shown = ["tf32" if dtype == "f32" and not _full(instruction.attributes) else dtype for dtype in given]
                found[DotProduct(tuple(sorted(shown)), instruction.results[0].dtype, 0)] += 1
        return found

    def schedule(self, program: HloProgram) -> Schedule:
        """Run through a program as the GPU would, one kernel after the other, without their launches.

        Raises ValueError where XLA has no rate for a product.
        """
        total = Schedule()
        for computation, instruction in program.kernels():
            if instruction.opcode in NO_WORK:
                continue
            total.loops += instruction.opcode == "while"
            if instruction.opcode in CALLS:
                continue
            given = [a for name in instruction.operands if name in computation for a in computation[name].results]
            arrays = [a for a in (*given, *instruction.results) if a.dtype != _WORKSPACE]
            moved = sum(a.bytes for a in arrays)
            total.hbm += moved
            seconds = moved / self.bandwidth
            if _PRODUCT.search(instruction.attributes):
                total.rated += 1
                seconds = max(seconds, self._product(given[0], instruction.results[0], instruction.attributes))
            total.seconds += seconds
        return total

    def _product(self, left: Array, out: Array, attributes: str) -> float:
        contracted = _CONTRACTED.search(attributes)
        rate = _RATE.search(attributes)
        if contracted is None or rate is None:
            raise ValueError(f"XLA has no rate for a product of {left.dtype} on {self.model}")
        if left.dtype == "f32" and _full(attributes):  # priced as TF32
            return 2 * prod(out.shape) * left.shape[int(contracted[1])] / self.peaks.flops["fp32"]
        counted_in_bytes = 1 if (left.dtype, out.dtype) in _RATED else Array(out.dtype, ()).bytes ** 3
        return float(rate[1]) * 1e-6 / counted_in_bytes


def _full(attributes: str) -> bool:
    return '"operand_precision":["HIGHEST"' in attributes


@cache
def _device(gpu: Gpu) -> Any:
    from jax.experimental import topologies  # noqa: PLC0415  # jax only where it is measured

    described = f"""
        gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
        shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
        core_count: {gpu.cores} fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
        block_dim_limit_z: 65535 memory_bandwidth: {gpu.bandwidth:.0f} l2_cache_size: {gpu.cache}
        clock_rate_ghz: {gpu.ghz} device_memory_size: {gpu.memory} registers_per_core_limit: 65536
        registers_per_block_limit: 65536 cuda_compute_capability {{ major: {gpu.capability} }} }}
        platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} runtime_version {{ major: 13 }}
        device_description_str: "{gpu.model}" """
    return topologies.get_topology_desc(platform="cuda", target_config=described, topology="1x1x1").devices[0]


def missing() -> str | None:
    """Say which package an estimate needs and is not here, None where there is none."""
    needed = {_PLUGIN: "jax-cuda13-plugin", "nvidia.cu13": "nvidia-cuda-nvcc"}
    for module, package in needed.items():
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:  # nor its parent
            found = None
        if found is None:
            return f"{package} is not installed; the extra ampcheck[cuda-estimate] brings it"
    return None


GPUS: Mapping[str, Gpu] = {
    "cuda-h100": Gpu("NVIDIA H100 80GB HBM3", 9, 132, 1.98, 50 * 2**20, 80 * 2**30),
    "cuda-b200": Gpu(
        "NVIDIA B200", 10, 148, 1.965, 126 * 2**20, 180 * 10**9, "a B200, whose rates nobody has compared"
    ),
}
"""Multiprocessors, clocks and caches are those of NVIDIA's architecture papers; XLA looks its table up by the model."""
