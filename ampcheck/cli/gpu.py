"""`ampcheck gpu`: a GPU in half an hour, in three phases that can be killed at any time and gone on with."""

import argparse
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ampcheck.cli import run as suites
from ampcheck.cli.common import INTERRUPTED
from ampcheck.runner.record import grouped, output_file, read
from ampcheck.runner.run import fitting

WORKLOADS = (
    *("mm-512", "mm-1024", "mm-4096", "mm-8192", "linear", "linear-4096", "conv2d", "conv2d-wide-nhwc", "sdpa"),
    *("sdpa-long", "layer-norm", "softmax", "mlp-step", "mlp-step-4096", "transformer-step-1024", "region-enter"),
)
_PROCESSES = 8
_CAUSES = 8
_ROWS = 18
_RULES = 5


def run(args: argparse.Namespace) -> int:
    """Run the phases that are not complete, and print a summary of all.

    Returns 0 where every phase is complete and nothing is red, 1 where something is left or red, 130 after Ctrl-C.
    Raises UsageError for a device that is not here, and a folder that cannot be written.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the GPU's memory
    steps: dict[str, Callable[[argparse.Namespace, Path], None]] = {
        "preflight": _preflight,
        "suites": lambda args, work: _suites(args, work, "suites"),
        "bench": _bench,
    }
    output_file(args.out / "work" / "smoke.jsonl", folders=True)
    for phase in args.phase or steps:
        with _within(args.limit) as began:
            steps[phase](args, args.out / "work")
        print(f"{phase}: {time.monotonic() - began:.0f} s\n", flush=True)
    text, well = summary(args.out)
    print(text)
    return 0 if well else 1


@contextmanager
def _within(limit: float) -> Iterator[float]:
    """Interrupt what runs, as Ctrl-C does, once the time is over; Ctrl-C itself ends the command."""
    began = time.monotonic()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield began
    except KeyboardInterrupt:  # where nothing was running that could be kept
        if time.monotonic() - began < limit:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _preflight(args: argparse.Namespace, work: Path) -> None:
    """Describe the device and what torch was built for, and run a small choice of the suites."""
    from torch import cuda  # noqa: PLC0415  # takes seconds

    from ampcheck.bench.core import machine  # noqa: PLC0415  # imports torch
    from ampcheck.bench.torch_private import has_triton  # noqa: PLC0415  # imports torch
    from ampcheck.devices.registry import select  # noqa: PLC0415  # imports torch
    from ampcheck.runner.record import versions  # noqa: PLC0415  # with the rest

    (device,) = select([args.device], args.device_module)
    with device.activate():
        about = device.describe()
        capability = cuda.get_device_capability()
        found: dict[str, Any] = {
            **about,
            "architectures of torch": cuda.get_arch_list(),
            "C++ compiler": shutil.which(os.environ.get("CXX", "c++")) is not None,
            "Triton": has_triton(),
            "driver answers": "driver_version" in about,
            "precisions": ["fp32", *(["tf32"] if capability >= (8, 0) else []), *device.amp_dtypes],
            "versions": versions(),
            "machine": machine.describe(),
        }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "preflight.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    _suites(args, work, "smoke", "--smoke")


def _suites(args: argparse.Namespace, work: Path, name: str, *more: str) -> None:
    """Run the suites, or go on with them where an earlier run of them was cut off."""
    before = _latest(work, name)
    if before is not None and read(before).footer is not None:
        return
    path = work / f"{name}-{len(list(work.glob(f'{name}-*.jsonl'))) + 1}.jsonl"
    words = [f"--device={args.device}", f"-n={min(fitting(), _PROCESSES)}", f"--run-file={path}", *more]
    words += [f"--device-module={module}" for module in args.device_module]
    if before is not None and read(before).results:
        words += [f"--resume={before}"]
    parser = argparse.ArgumentParser()
    suites.add(parser.add_subparsers())
    began = time.monotonic()
    code = suites.run(parser.parse_args(["run", *words]))
    _keep(_latest(work, name), args.out / f"{name}.jsonl")
    if code == INTERRUPTED and time.monotonic() - began < args.limit - 5:
        raise KeyboardInterrupt


def _bench(args: argparse.Namespace, work: Path) -> None:
    """Measure the workloads that no earlier phase has measured."""
    from ampcheck.bench import session  # noqa: PLC0415  # imports torch
    from ampcheck.bench.run.group import Mode  # noqa: PLC0415  # imports torch

    before = _latest(work, "bench")
    options = session.BenchOptions(
        devices=[args.device],
        modules=args.device_module,
        filters=session.fitting(WORKLOADS, args.device, args.device_module),
        run_file=work / f"bench-{len(list(work.glob('bench-*.jsonl'))) + 1}.jsonl",
        extent=Mode("gpu", 1, 9, 0.02, limit=120.0, patience=20.0, budget=args.limit),
        resume=before,
    )
    chosen = session.choose(options)
    if before is not None and len(session.measured_before(before)) == len(chosen.keys):
        return
    began = time.monotonic()
    outcome = session.measure(options, chosen, lambda text: print(text, flush=True), print)
    _keep(_latest(work, "bench"), args.out / "bench.jsonl")
    if outcome.interrupted and time.monotonic() - began < args.limit - 5:
        raise KeyboardInterrupt


def _latest(work: Path, name: str) -> Path | None:
    """Return the file of a phase that has most, as one that was killed early may have less than the one before it."""
    return max(work.glob(f"{name}-*.jsonl"), key=lambda path: (path.stat().st_size, path.name), default=None)


def _keep(path: Path | None, target: Path) -> None:
    if path is not None:
        shutil.copy(path, target)


def summary(out: Path) -> tuple[str, bool]:
    """Return what the files of a folder say, in at most 40 lines, and whether all is complete and nothing red."""
    from ampcheck.bench.core import table  # noqa: PLC0415  # imports torch
    from ampcheck.bench.run import runfile  # noqa: PLC0415  # imports torch

    lines, well = [], True
    if (path := out / "preflight.json").exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        lines += [", ".join(f"{name} {value}" for name, value in found.items() if isinstance(value, str | bool))]
        lines += [f"precisions {', '.join(found['precisions'])}; torch {found['versions'].get('torch')}"]
    for name in ("smoke", "suites"):
        if not (path := out / f"{name}.jsonl").exists():
            lines, well = [*lines, f"{name}: not begun"], False
            continue
        done = read(path)
        left = done.header["cases"] - len(done.results)
        counts = Counter(result.status for result in done.results.values())
        red = grouped(done.results.values())[: _CAUSES // 2 if name == "smoke" else _CAUSES]
        lines += [f"{name}: {', '.join(f'{count} {status}' for status, count in counts.most_common())}"]
        ran = Counter(f"{result.suite}/{result.rule}" for result in done.results.values())
        without = (Counter(done.header.get("rules", {})) - ran).most_common()
        named = ", ".join(f"{rule} {count}" for rule, count in without[:_RULES]) + ", …" * (len(without) > _RULES)
        lines += [f"  {left} cases did not run ({named}); the same command goes on"] if left else []
        lines += [f"  {len(cause.results)} red: {cause.line(120)}" for cause in red]
        well &= not left and not red
    if not (path := out / "bench.jsonl").exists():
        return "\n".join([*lines, "bench: not begun"]), False
    groups = list(runfile.read(path).groups.values())
    missing = [group.key for group in groups if group.variants[0].verdict == "not measured"]
    lines += [f"bench: {len(groups) - len(missing)} of {len(groups)} groups"]
    eager = [group for group in groups if group.compiler == "eager" and group.kind != "overhead"][:_ROWS]
    for group in eager:
        figures = [f"{one.name} {table.time(one)} {table.ratio(one)}" for one in group.variants if one.seconds]
        lines += [f"  {group.workload}: {'; '.join(figures)}"]
    lines += [f"  not measured: {', '.join(missing)}; the same command goes on"] if missing else []
    return "\n".join(lines), well and not missing
