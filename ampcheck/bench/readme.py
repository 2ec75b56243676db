"""The README's picture and table, made of the published benchmark files.

    python -m ampcheck.bench.readme

writes `docs/speedup.svg` and the part of README.md between the markers; a test holds the README against the files.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ampcheck.bench import table
from ampcheck.bench.model import ArmResult, Group
from ampcheck.bench.runfile import BenchRun, read

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "reports" / "published" / "bench"
PICTURE = ROOT / "docs" / "speedup.svg"
BEGIN, END = "<!-- benchmarks: begin -->\n", "<!-- benchmarks: end -->\n"

WORKLOADS = (
    "mm-64", "mm-512", "mm-1024", "mm-8192", "linear", "linear-4096", "conv2d", "conv2d-wide", "sdpa", "sdpa-long",
    "layer-norm", "softmax", "add", "tiny-mlp-step", "mlp-step", "mlp-step-4096", "transformer-step",
    "transformer-step-1024", "resnet-step", "resnet-step-256-nhwc", "lstm-step",
)  # fmt: skip
"""What is shown, from small ops to steps."""

COLUMNS = (
    ("cpu", "eager"),
    ("jax", "eager"),
    ("jax", "jit"),
    ("cuda", "eager"),
    ("tpu-v5e", "jit"),
    ("tpu-v6e", "jit"),
)
"""Device and executor of each column, where a published file has it."""

ARM = "bf16"
_COLOURS = ("#1b6ca8", "#c2571a", "#2a8a4a", "#7a4bb5", "#777777", "#b03060")


def published(folder: Path = PUBLISHED) -> list[BenchRun]:
    """The published files, oldest first."""
    return sorted((read(path) for path in folder.glob("*.jsonl")), key=lambda run: str(run.header.get("started", "")))


def chosen(runs: Sequence[BenchRun]) -> dict[tuple[str, str], dict[str, Group]]:
    """The groups of each column by workload, of the newest file that has them; columns that nobody has are left out."""
    found: dict[tuple[str, str], dict[str, Group]] = {}
    for run in runs:
        for group in run.groups.values():
            if (group.device, group.executor) in COLUMNS and group.workload in WORKLOADS:
                found.setdefault((group.device, group.executor), {})[group.workload] = group
    return {column: found[column] for column in COLUMNS if column in found}


def markdown(columns: Mapping[tuple[str, str], Mapping[str, Group]]) -> str:
    """The table: a row per workload, in each column both times and the ratio, or why there is none."""
    heads = [f"{device} {executor}{_estimated(groups)}" for (device, executor), groups in columns.items()]
    rows = [
        [name, *(_cell(groups.get(name)) for groups in columns.values())]
        for name in WORKLOADS
        if any(name in groups for groups in columns.values())
    ]
    return tabulate(rows, ["float32 → bf16", *heads], tablefmt="github", disable_numparse=True) + "\n"


def _estimated(groups: Mapping[str, Group]) -> str:
    return " (estimate)" if any(group.estimate for group in groups.values()) else ""


def _cell(group: Group | None) -> str:
    first, arm = (group.arms[0], group.arm(ARM)) if group is not None and group.arms else (None, None)
    if first is None or arm is None:
        return "not measured"
    if arm.speed is None:
        return arm.verdict
    return f"{table.seconds(first.seconds)} → {table.seconds(arm.seconds)}, **{arm.speed:.2f}×** {arm.verdict}"


def machines(runs: Sequence[BenchRun]) -> str:
    """One line per file: what it was measured on."""
    lines = []
    for run in runs:
        machine: dict[str, Any] = run.header.get("machine", {})
        versions: dict[str, str] = run.header.get("versions", {})
        what = ", ".join(f"{name} {versions[name]}" for name in ("torch", "jax") if name in versions)
        isa = [flag for flag in machine.get("isa", []) if "bf16" in flag or "fp16" in flag]
        devices = ", ".join(run.header.get("devices", {}))
        model, cores = machine.get("model", "unknown processor"), machine.get("cores", "?")
        processor = f"{model}, {cores} cores" + (f" with {', '.join(isa)}" if isa else "")
        threads, mode = run.header.get("threads", 1), run.header.get("mode", "")
        lines.append(f"- `{run.path.name}`: {devices}; {processor}, threads {threads}, {what}, {mode}")
    return "\n".join(lines) + "\n"


def text(runs: Sequence[BenchRun]) -> str:
    """What stands between the README's markers: the picture, a table of what was measured and one of estimates."""
    columns = chosen(runs)
    estimated = {column: groups for column, groups in columns.items() if _estimated(groups)}
    tables = [{column: groups for column, groups in columns.items() if column not in estimated}, estimated]
    return (
        f"![Speed of bf16 under autocast beside float32, by workload and device](docs/{PICTURE.name})\n\n"
        + "".join(f"{markdown(table)}\n" for table in tables if table)
        + machines(runs)
    )


def picture(columns: Mapping[tuple[str, str], Mapping[str, Group]]) -> str:
    """The ratios as an SVG: a row per workload, a dot per device with its interval, hollow for an estimate."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.hashsalt": "ampcheck", "svg.fonttype": "none", "font.size": 10})
    names = [name for name in WORKLOADS if any(name in groups for groups in columns.values())]
    figure, axes = pyplot.subplots(figsize=(9, 0.42 * len(names) + 1.2))
    axes.axvline(1, color="#888888", linewidth=1)
    for place, ((device, executor), groups) in enumerate(columns.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        shift = (place - (len(columns) - 1) / 2) * 0.7 / len(columns)
        label: str | None = f"{device} {executor}{_estimated(groups)}"
        for row, name in enumerate(names):
            arm = _drawn(groups.get(name))
            if arm is None or arm.speed is None:
                continue
            low, high = arm.speed_low or arm.speed, arm.speed_high or arm.speed
            face = "none" if groups[name].estimate else colour
            axes.plot([low, high], [row + shift] * 2, color=colour, linewidth=1.5)
            axes.plot([arm.speed], [row + shift], "o", color=colour, markerfacecolor=face, markersize=5, label=label)
            label = None
    axes.set_xscale("log")
    axes.set_xticks([0.25, 0.5, 1, 2, 4, 8], ["¼×", "½×", "1×", "2×", "4×", "8×"])
    axes.minorticks_off()
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("speed of bf16 under autocast beside float32 on the same device; lines are 95 % intervals")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.12), ncols=4, frameon=False)
    figure.patch.set_facecolor("white")
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(figure)
    return out.getvalue()


def _drawn(group: Group | None) -> ArmResult | None:
    return group.arm(ARM) if group is not None else None


def main() -> None:
    """Write the picture and the README's part."""
    runs = published()
    PICTURE.write_text(picture(chosen(runs)), encoding="utf-8")
    readme = ROOT / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split(BEGIN)
    readme.write_text(before + BEGIN + text(runs) + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
