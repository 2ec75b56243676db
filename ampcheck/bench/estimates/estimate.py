"""Estimate the cost of a workload on a TPU or GPU with its compiler: none is needed, and nothing is measured.

The program is that of `ampcheck.jax_device.jit`; libtpu, or XLA for CUDA, compiles it for a chip that is described, not
there. docs/benchmarks.md says what the figures mean.
"""

import dataclasses
import gc
import importlib.util
import json
import math
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar
from unittest import mock

from ampcheck.bench.core.model import PRECISIONS, Group, OverheadWorkload, Precision, VariantResult, Workload
from ampcheck.bench.core.prepare import flops as flops_of
from ampcheck.bench.core.prepare import prepare
from ampcheck.bench.estimates import program as hlo
from ampcheck.bench.estimates.program import CALLS, NO_WORK, SMALL, Array, DotProduct, HloProgram, Schedule
from ampcheck.bench.run import ceilings, summary
from ampcheck.bench.run.measure import environment
from ampcheck.bench.run.variants import variants
from ampcheck.bench.workloads import catalogue
from ampcheck.errors import UsageError, one_line
from ampcheck.runner.record import first_line
from ampcheck.runner.worker import Channel, Worker
from ampcheck.spec.torch_dtypes import name_of


@dataclass(frozen=True, slots=True)
class Estimate:
    """The compiler's estimate of one program on one device.

    `seconds` of one call, from `source`: "cycles" (the compiler's, scheduled), "rates" (of products, by XLA's table),
    "optimal" (XLA's `optimal_seconds`) or "roofline" (the larger of flops by peak and bytes by bandwidth). `optimal`:
    XLA's `optimal_seconds` as it is, below zero where it means nothing, None where there is none. `flops`: operations,
    a product of six passes once. `bytes`: read from and written to HBM. `memory`: bytes of arguments, outputs and what
    is temporary. `compile`: seconds the compiler took. `products`: how many of each kind, with their dtypes. `casts`:
    those of 65536 elements and more, the largest first, and `cast_count` all. `wide`: float64 arrays, which a TPU has
    no hardware for.
    """

    seconds: float
    source: str
    schedule: Schedule
    optimal: float | None
    flops: float
    bytes: float
    memory: int
    compile: float
    products: Counter[DotProduct]
    casts: tuple[str, ...]
    cast_count: int
    wide: tuple[str, ...]


def estimate(workload: Workload, precision: Precision, device: str) -> Estimate:
    """Compile a workload in a precision for a device, and read what the compiler says.

    Makes the jax device in this process and describes the chip in the environment, so a process that uses a real one is
    not the place for it; `groups` starts another. Nothing is computed, but the workload's tensors are made.
    Raises UsageError for an unknown device or where `available` says why not, and whatever tracing or the compiler
    raises.
    """
    made = _compiling_for(device)
    for name, value in made.environment.items():
        os.environ.setdefault(name, value)
    import jax  # noqa: PLC0415  # jax only where it is measured

    from ampcheck import jax_device  # noqa: F401, PLC0415  # makes the device

    setting = "highest" if precision.matmul == "highest" else "default"
    with jax.default_matmul_precision(setting):
        ready = prepare(workload, precision, "jax", "jit")
        # Lowerings that ask are told another platform, while JAX itself goes on with the real one: the program would
        # have what the device does for a CPU only, such as float32 results of bf16 products.
        with mock.patch("jax.default_backend", return_value=made.platform):
            function, structs = ready.jitted.program(*ready.arguments)
        lowered = lower(function, structs, made.device(), made.compiled_for)
        return compiled(lowered, made)


def lower(function: Any, structs: Sequence[Any], device: Any, platform: str) -> Any:
    """JAX's `Lowered` of a program for one device, given what its inputs are."""
    import jax  # noqa: PLC0415  # jax only where it is measured

    place = jax.sharding.SingleDeviceSharding(device)
    placed = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=place, weak_type=s.weak_type) for s in structs]
    return function.trace(*placed).lower(lowering_platforms=(platform,))


@cache
def _described(platform: str, **about: str) -> Any:
    """Return a device that is described, not there."""
    from jax.experimental import topologies  # noqa: PLC0415  # jax only where it is measured

    return topologies.get_topology_desc(platform=platform, **about).devices[0]


def compiled(lowered: Any, made: "Chip | Gpu") -> Estimate:
    """Compile what is lowered, and read what the compiler says of it.

    Raises ValueError where it says nothing from which a time could be had.
    """
    started = time.perf_counter()
    result = lowered.compile(compiler_options=dict(made.options))
    took = time.perf_counter() - started
    program = hlo.parse(result.as_text())
    plan = made.schedule(program)
    cost: Mapping[str, float] = result.cost_analysis() or {}
    flops, accessed = cost.get("flops", 0.0), cost.get("bytes accessed", 0.0)
    optimal = cost.get("optimal_seconds")
    seconds, source = duration(plan, optimal, flops, accessed, made)
    found = hlo.casts(program)
    big = [cast for cast in found if math.prod(cast.result.shape) >= SMALL]
    big.sort(key=lambda cast: -found[cast] * cast.result.bytes)
    sizes = result.memory_analysis()
    held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    return Estimate(
        seconds=seconds,
        source=source,
        schedule=plan,
        optimal=optimal,
        flops=flops,
        bytes=plan.hbm if source in ("cycles", "rates") else accessed,
        memory=held - sizes.alias_size_in_bytes,
        compile=took,
        products=made.products(program),
        casts=tuple(f"{found[cast]} × {cast}" for cast in big),
        cast_count=sum(found.values()),
        wide=tuple(map(str, hlo.wide(program))),
    )


def duration(
    plan: Schedule, optimal: float | None, flops: float, accessed: float, made: "Chip | Gpu"
) -> tuple[float, str]:
    """Seconds of a program, and where they come from: see `Estimate`. Raises ValueError where nothing says any."""
    if plan.cycles:
        return plan.seconds, "cycles"
    if plan.rated:
        return plan.seconds, "rates"
    if optimal is not None and math.isfinite(optimal) and optimal > 0:
        return optimal, "optimal"
    seconds = max(flops / made.flops, accessed / made.bandwidth)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError("the compiler gives neither cycles nor seconds, operations or bytes")
    return seconds, "roofline"


@dataclass(frozen=True, slots=True)
class Chip:
    """One JAX device of a TPU generation, by its maker's figures.

    `topology`: what libtpu calls the smallest slice. `clock`: cycles a second, the peak divided by what the matrix
    units do in a cycle. `flops`: peak of bf16 products, a second. `bandwidth`: of HBM, bytes a second. `note`: what of
    a chip a JAX device is, where it is not the whole.
    """

    topology: str
    clock: float
    flops: float
    bandwidth: float
    note: str = ""

    platform = compiled_for = "tpu"
    needs = (("libtpu", "libtpu", "tpu-estimate"),)
    options: ClassVar[Mapping[str, Any]] = {}
    environment: ClassVar[Mapping[str, str]] = {
        "TPU_SKIP_MDS_QUERY": "1",  # libtpu asks the network what machine it is on
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # of the machine that is not there; `topology` says what for to compile
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # the lock is for chips, and there is none
    }
    claim = "an estimate of the TPU compiler, not a measurement"

    def device(self) -> Any:
        """Return the described device, to compile for."""
        return _described("tpu", topology_name=self.topology)

    def products(self, program: HloProgram) -> Counter[DotProduct]:
        """Count the program's products of each kind."""
        return hlo.products(program)

    def schedule(self, program: HloProgram) -> Schedule:
        """Run through a program as the chip would."""
        return hlo.schedule(program, self.clock, self.bandwidth)


TPUS: Mapping[str, Chip] = {
    "tpu-v4": Chip("v4:2x2x1", 1.05e9, 137.5e12, 614e9, "one of the chip's two cores"),
    "tpu-v5e": Chip("v5e:2x2", 1.5e9, 197e12, 819e9),
    "tpu-v5p": Chip("v5p:2x2x1", 1.75e9, 459e12, 2765e9),
    "tpu-v6e": Chip("v6e:2x2", 1.75e9, 918e12, 1640e9),
}
"""https://docs.cloud.google.com/tpu/docs/system-architecture-tpu-vm gives the peaks and bandwidths of chips."""


# ---- NVIDIA's: XLA compiles for them without a driver, and its table of rates prices their products. What that says is
# put right where it is known to be wrong; docs/benchmarks.md has each correction with its reason.

PRICED = ("mm-2048", "mm-4096", "mm-8192", "linear-4096", "mlp-step-4096")
"""The workloads whose time is that of large products; XLA has no figures for launches, convolutions and attention."""

_PRODUCT = re.compile(r'custom_call_target="__cublas')
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions":\["(\d+)"\]')
_RATE = re.compile(r'"exec_time_us":([\d.e+-]+)[^{}]*"name":"sol"')
_RATED = (("bf16", "bf16"), ("f32", "f32"))
"""Dtypes of operands and result that the table has. Of others XLA counts rows, columns and depth in bytes."""
_WORKSPACE = "s8"


@dataclass(frozen=True, slots=True)
class Gpu:
    """An NVIDIA GPU as XLA wants it described. Peak and bandwidth are those of `peaks.csv`.

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
    needs = (
        ("jax_plugins.xla_cuda13", "jax-cuda13-plugin", "cuda-estimate"),
        ("nvidia.cu13", "nvidia-cuda-nvcc", "cuda-estimate"),
    )
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
        described = f"""
            gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
            shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
            core_count: {self.cores} fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
            block_dim_limit_z: 65535 memory_bandwidth: {self.bandwidth:.0f} l2_cache_size: {self.cache}
            clock_rate_ghz: {self.ghz} device_memory_size: {self.memory} registers_per_core_limit: 65536
            registers_per_block_limit: 65536 cuda_compute_capability {{ major: {self.capability} }} }}
            platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} runtime_version {{ major: 13 }}
            device_description_str: "{self.model}" """
        return _described("cuda", target_config=described, topology="1x1x1")

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
            return 2 * math.prod(out.shape) * left.shape[int(contracted[1])] / self.peaks.flops["fp32"]
        counted_in_bytes = 1 if (left.dtype, out.dtype) in _RATED else Array(out.dtype, ()).bytes ** 3
        return float(rate[1]) * 1e-6 / counted_in_bytes


def _full(attributes: str) -> bool:
    return '"operand_precision":["HIGHEST"' in attributes


GPUS: Mapping[str, Gpu] = {
    "cuda-h100": Gpu("NVIDIA H100 80GB HBM3", 9, 132, 1.98, 50 * 2**20, 80 * 2**30),
    "cuda-b200": Gpu(
        "NVIDIA B200", 10, 148, 1.965, 126 * 2**20, 180 * 10**9, "a B200, whose rates nobody has compared"
    ),
}
"""Multiprocessors, clocks and caches are those of NVIDIA's architecture papers; XLA looks its table up by the model."""

CHIPS: Mapping[str, Chip | Gpu] = {**TPUS, **GPUS}
"""What can be estimated, by the name that `--device` takes."""


def available(device: str) -> str | None:
    """Say why there can be no estimates for a device here, None where there can. Imports neither JAX nor a compiler."""
    for module, package, extra in (("jax", "JAX", "jax"), *chip(device).needs):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:  # nor its parent
            found = None
        if found is None:
            return f"{package} is not installed; the extra ampcheck[{extra}] brings it"
    return None


def chip(device: str) -> Chip | Gpu:
    """Return the chip of a name such as "cuda-h100" or "tpu-v5e". Raises UsageError for an unknown one."""
    if device not in CHIPS:
        raise UsageError(f"there are no estimates for {device!r}; there are {', '.join(CHIPS)}")
    return CHIPS[device]


def _compiling_for(device: str) -> Chip | Gpu:
    if why := available(device):
        raise UsageError(why)
    return chip(device)


def priced(workload: Workload, device: str) -> bool:
    """Return whether there is an estimate of a workload on a device: a program, and the compiler's figures for it."""
    if isinstance(workload, OverheadWorkload):
        return False
    return workload.name in PRICED or not isinstance(chip(device), Gpu)


MOVES = frozenset(
    ("reshape", "copy", "transpose", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad")
)
"""The kinds that take as long as their bytes take to move, where the compiler gives no cycles."""


def variant_result(workload: Workload, precision: Precision, found: Estimate, made: Chip | Gpu) -> VariantResult:
    """Return the figures of a variant; its verdict is "invalid", "not measured", "ambiguous", or "" so far."""
    invalid = contradicts(workload, precision, found)
    loops = found.schedule.loops
    variant = VariantResult(precision.name, "invalid" if invalid else "", invalid)
    variant.precision_check, variant.compile, variant.memory = precision_check(found), found.compile, found.memory
    if loops and not invalid:
        variant.verdict = "not measured"
        variant.reason = (
            f"how often {loops} loop{'s' if loops > 1 else ''} of the program run is not in the compiler's text"
        )
    if variant.verdict:
        return variant
    counted = flops_of(workload)
    flops = counted or found.flops
    variant.seconds = found.seconds
    variant.flops_per_second = flops / found.seconds if flops else None
    variant.bytes_per_second = found.bytes / found.seconds
    variant.intensity = flops / found.bytes if flops and found.bytes else None
    if counted:
        summary.share(variant, counted / found.seconds / made.flops, "published")
    unknown = {name: count for name, count in found.schedule.without.most_common() if name not in MOVES}
    if unknown:
        what = ", ".join(f"{count} × {name}" for name, count in unknown.items())
        variant.verdict = "ambiguous"
        variant.reason = f"the compiler gives no cycles for {what}: taken by the bytes they move, which is too little"
    return variant


def contradicts(workload: Workload, precision: Precision, found: Estimate) -> str:
    """Say why the program is not what the variant's name says, "" where it is."""
    if found.wide:
        return f"computes in float64: {found.wide[0]}"
    kinds = [product for product in found.products if any(map(hlo.floating, product.operands))]
    if precision.low is None:
        for product in kinds:
            if precision.matmul == "highest" and (0 < product.passes < 6 or set(product.operands) != {"f32"}):
                return f"a product is in {product}, where float32 was asked for"
        return ""
    low = name_of(precision.low)
    expected = precision.convert is not None or workload.policy in ("downcast", "mixed")
    if kinds and expected and not any(hlo.name_of(one) == low for product in kinds for one in product.operands):
        return f"no product is in {low}; there are {', '.join(map(str, kinds))}"
    return ""


def precision_check(found: Estimate) -> str:
    """Return the dtypes of the products and the casts that are left, and where the time comes from."""
    kinds = ", ".join(f"{count} × {kind}" for kind, count in found.products.most_common())
    parts = [f"products: {kinds or 'none'}", f"casts left: {found.cast_count}"]
    if found.casts:
        parts[-1] += f" ({', '.join(found.casts[:3])}{', …' if len(found.casts) > 3 else ''})"
    sources = {
        "cycles": f"time from {found.schedule.cycles} cycles of the compiler's",
        "rates": "time of products from XLA's table of rates, of float32 in full from the data sheet's peak, of the "
        "rest from the bytes it moves",
        "optimal": "time from XLA's optimal_seconds, which knows no passes",
        "roofline": "time from flops by peak and bytes by bandwidth, the larger",
    }
    return "; ".join([*parts, sources[found.source]])


# ---- whole groups, their programs compiled in a separate process

VARIANTS = ("fp32", "fp32-default", "bf16", "fp16", "bf16-native")
LIMIT = 900.0
"""Seconds that one program may take; float32 in six passes takes the compiler longest, minutes for a step."""

Task = tuple[str, str]
"""A workload's name and a precision's."""


def groups(
    workloads: Sequence[Workload], device: str, progress: Callable[[str], None], until: float = math.inf
) -> list[Group]:
    """Estimate each workload in each precision; the programs are compiled in a separate process, one by one.

    What has no program or no price is left out. A variant that cannot be compiled, ends the process or takes too long
    is "not measured" with the reason.

    Args:
        workloads: of the catalogue, as the other process finds them by name.
        device: such as "cuda-h100" or "tpu-v5e"; see `CHIPS`.
        progress: gets a line as each program begins.
        until: when the whole has to end, by `time.monotonic`; programs that are not compiled then are not measured.

    Raises UsageError for an unknown device, where `available` says why not, and for a workload of no catalogue.
    """
    made = _compiling_for(device)
    out: list[Group] = []
    left: list[Task] = []
    for workload in workloads:
        if not priced(workload, device):
            continue
        if catalogue().get(workload.name) is not workload:
            raise UsageError(f"workload {workload.name!r} is not in the catalogue, so another process cannot find it")
        chosen, without = variants(workload, "jax", made.platform)
        there = {variant.name for variant in chosen if not variant.aa}
        group = summary.group_of(workload, device, "jit")
        group.estimate, group.note = True, made.claim + (f"; of {made.note}" if made.note else "")
        for precision in VARIANTS:
            if precision in there:
                left.append((workload.name, precision))
            elif precision in without:
                group.variants.append(VariantResult(precision, "not measured", without[precision]))
        out.append(group)
    found = dict(_results(device, left, progress, LIMIT, until))
    for group in out:
        group.variants += [variant for (workload_name, _), variant in found.items() if workload_name == group.workload]
        group.variants.sort(key=lambda variant: VARIANTS.index(variant.name))
        summary.compare(group, summary.by_estimate)
    return out


def _results(
    device: str, tasks: Sequence[Task], progress: Callable[[str], None], limit: float, until: float = math.inf
) -> Iterator[tuple[Task, VariantResult]]:
    """Each task's variant as it is ready; a process that ends early costs the variant that it was at."""
    left = list(tasks)
    while left:
        ended = "left out, as the run had to end"
        if time.monotonic() < until:
            command = [sys.executable, "-m", "ampcheck.bench.estimates.estimate"]
            given = {"device": device, "tasks": left}
            with Worker(command, {**environment(1), "JAX_PLATFORMS": "cpu"}, given) as worker:
                try:
                    progress(_line(device, tasks, left))
                    while (line := worker.hear(min(limit, until - time.monotonic()))) is not None:
                        yield left.pop(0), VariantResult(**line)
                        progress(_line(device, tasks, left))
                    ended = f"the process ended with {worker.reason()}"
                except TimeoutError:
                    ended = f"took more than {limit:.0f} s to compile"
                    if time.monotonic() >= until:
                        ended = "was not compiled when the run had to end"
        if left:
            task = left.pop(0)
            yield task, VariantResult(task[1], "not measured", ended)


def _line(device: str, tasks: Sequence[Task], left: Sequence[Task]) -> str:
    if not left:
        return f"{device}: {len(tasks)} programs estimated"
    workload, precision = left[0]
    return f"{len(tasks) - len(left) + 1} of {len(tasks)}: {device}/jit/{workload} {precision}"


def main() -> None:
    """Estimate what standard input says: {"device": a name, "tasks": pairs of workload and precision}."""
    given = json.load(sys.stdin)
    channel = Channel()
    warnings.simplefilter("ignore")
    for name, precision in given["tasks"]:
        workload, chosen, device = catalogue()[name], PRECISIONS[precision], given["device"]
        try:
            variant = variant_result(workload, chosen, estimate(workload, chosen, device), chip(device))
        except Exception as error:  # the compiler may refuse anything, and the next program is to be tried
            variant = VariantResult(precision, "not measured", first_line(one_line(error)))
        channel.send(dataclasses.asdict(variant))
        gc.collect()


if __name__ == "__main__":
    main()
