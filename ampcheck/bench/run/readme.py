"""The picture and tables of docs/benchmarks.md, made of the published benchmark files.

    python -m ampcheck.bench.run.readme

writes `docs/speedup.svg` and the part of `docs/benchmarks.md` between the markers; a test compares it with the files.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ampcheck.bench.core import table
from ampcheck.bench.core.model import DEFAULT, ESTIMATED, Group, VariantResult
from ampcheck.bench.run import exports
from ampcheck.bench.run.runfile import BenchRun, read
from ampcheck.bench.run.summary import BAND
from ampcheck.bench.run.variants import NO_PRODUCT
from ampcheck.runner.record import counted

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "reports" / "published" / "bench"
PICTURE = ROOT / "docs" / "speedup.svg"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- benchmarks: begin -->\n", "<!-- benchmarks: end -->\n"

WORKLOADS = (
    "mm-64", "mm-512", "mm-1024", "mm-8192", "linear", "linear-4096", "conv2d", "conv2d-wide", "sdpa", "sdpa-long",
    "layer-norm", "softmax", "add", "tiny-mlp-step", "mlp-step", "mlp-step-4096", "transformer-step",
    "transformer-step-1024", "resnet-step", "resnet-step-256-nhwc", "lstm-step",
)  # fmt: skip
"""The workloads that are shown, from small ops to steps."""

COLUMNS = (
    ("cpu", "eager"),
    ("jax", "eager"),
    ("jax", "jit"),
    ("cuda", "eager"),
    ("tpu-v5e", "jit"),
    ("tpu-v6e", "jit"),
    ("cuda-h100", "jit"),
    ("cuda-b200", "jit"),
)
"""Device and compiler of each column, where a published file has it."""

VARIANT = "bf16"
_COLOURS = ("#1b6ca8", "#c2571a", "#2a8a4a", "#7a4bb5", "#777777", "#b03060")


def published() -> list[BenchRun]:
    """Return the published files, oldest first."""
    return sorted(
        (read(path) for path in PUBLISHED.glob("*.jsonl")), key=lambda run: str(run.header.get("started", ""))
    )


def chosen(runs: Sequence[BenchRun]) -> dict[tuple[str, str], dict[str, Group]]:
    """Return the groups of each column by workload, of the newest file that has them, without empty columns."""
    found: dict[tuple[str, str], dict[str, Group]] = {}
    for run in runs:
        for group in run.groups.values():
            if (group.device, group.compiler) in COLUMNS and group.workload in WORKLOADS:
                found.setdefault((group.device, group.compiler), {})[group.workload] = group
    return {column: found[column] for column in COLUMNS if column in found}


def markdown(columns: Mapping[tuple[str, str], Mapping[str, Group]]) -> str:
    """Return the table: a row per workload, in each column both times and the ratio, or why there is none.

    A device that shortens float32 products unless told otherwise has a second column, beside that float32.
    """
    heads, cells = [], []
    for (device, compiler), groups in columns.items():
        head = f"{device} {compiler}{_estimated(groups)}"
        kinds = {f"{head}, float32 in full": False, f"{head}, float32 by default": True}
        for title, default in (kinds if _shortened(groups) else {head: False}).items():
            heads.append(title)
            cells.append((groups, default))
    rows = [[name, *(_cell(groups.get(name), default) for groups, default in cells)] for name in _shown(columns)]
    return tabulate(rows, ["float32 → bf16", *heads], tablefmt="github", disable_numparse=True) + "\n"


def _shown(columns: Mapping[tuple[str, str], Mapping[str, Group]]) -> list[str]:
    return [name for name in WORKLOADS if any(name in groups for groups in columns.values())]


def sentence(columns: Mapping[tuple[str, str], Mapping[str, Group]]) -> str:
    """Say in how many workloads autocast is slower than float32 as a TPU computes it by default; "" without figures.

    Those count in which the two have a product to compute, and so differ.
    """
    parts = []
    for (device, _), groups in columns.items():
        found = [group.variant(VARIANT) for group in groups.values() if device.startswith("tpu-")]
        variants = [variant for variant in found if variant and variant.default_speed]
        slower = [variant for variant in variants if (variant.default_speed or 1) < 1]
        clear = sum(variant.default_verdict == "slower" for variant in slower)
        if variants:
            inner = f" ({clear} of them by more than {BAND:.0%})" if clear < len(slower) else ""
            parts.append(f"in {len(slower)} of {len(variants)} workloads{inner} on {device}")
    if not parts:
        return ""
    return (
        "On a TPU a float32 product in full takes six bf16 passes, and has to be asked for; by default it takes one. "
        f"Beside that default, bf16 under autocast is slower {' and '.join(parts)}.\n"
    )


def _shortened(groups: Mapping[str, Group]) -> bool:
    return any(group.variant(DEFAULT) for group in groups.values())


def _estimated(groups: Mapping[str, Group]) -> str:
    return " (estimate)" if any(group.estimate for group in groups.values()) else ""


def _beside(group: Group, default: bool) -> tuple[VariantResult | None, tuple[float | None, ...], str]:
    """Return what a variant is compared with, float32 as asked for or by default; its speed with interval; verdict."""
    variant = group.variant(VARIANT)
    base = group.variant(DEFAULT) if default else next(iter(group.variants), None)
    if variant is None:
        return None, (None,) * 3, ""
    if default:
        return base, (variant.default_speed, variant.default_low, variant.default_high), variant.default_verdict
    return base, (variant.speed, variant.speed_low, variant.speed_high), variant.verdict


def _cell(group: Group | None, default: bool) -> str:
    """Return both times and the ratio, beside the first variant or beside float32 as the device computes it."""
    base, (speed, *_), verdict = _beside(group, default) if group else (None, (None,), "")
    variant = group.variant(VARIANT) if group else None
    if base is None or variant is None:
        return "not measured"
    if speed is not None:
        return f"{table.seconds(base.seconds)} → {table.seconds(variant.seconds)}, **{speed:.2f}×** {verdict}"
    if default:
        return "no product" if base.reason == NO_PRODUCT else "not measured"
    return verdict


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
        threads, mode = counted(run.header.get("threads", 1), "thread"), run.header.get("mode", "")
        missing = f"; {note}" if (note := exports.incomplete(run)) else ""
        lines.append(f"- `{run.path.name}`: {devices}; {processor}, {threads}, {what}, {mode}{missing}")
    return "\n".join(lines) + "\n"


def text(runs: Sequence[BenchRun]) -> str:
    """Return the part of the page: picture, table of measurements, tables of estimates with a sentence, machines."""
    columns = chosen(runs)
    estimated = {column: groups for column, groups in columns.items() if _estimated(groups)}
    tables = [{column: groups for column, groups in columns.items() if column not in estimated}]
    tables += [{x: groups for x, groups in estimated.items() if x[0].startswith(kind)} for kind in ESTIMATED]
    return (
        f"![Speed of bf16 under autocast beside float32, by workload and device]({PICTURE.name})\n\n"
        + "".join(f"{markdown(table)}\n" for table in tables if table)
        + (f"{said}\n" if (said := sentence(estimated)) else "")
        + machines(runs)
    )


def picture(columns: Mapping[tuple[str, str], Mapping[str, Group]]) -> str:
    """Return the ratios as an SVG: a row per workload, a dot per device with its interval, hollow for an estimate."""
    import matplotlib  # noqa: PLC0415  # matplotlib takes a second to load

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415  # matplotlib takes a second to load

    matplotlib.rcParams.update({"svg.hashsalt": "ampcheck", "svg.fonttype": "none", "font.size": 10})
    names = _shown(columns)
    coloured = [(*column, _COLOURS[place % len(_COLOURS)]) for place, column in enumerate(columns.items())]
    series = [(f"{d} {e}{_estimated(groups)}", groups, colour, False) for (d, e), groups, colour in coloured]
    shortened = [one for one in coloured if _shortened(one[1])]
    series += [(f"{d} {e}, beside its default", groups, colour, True) for (d, e), groups, colour in shortened]
    figure, axes = pyplot.subplots(figsize=(9, 0.42 * len(names) + 1.2))
    axes.axvline(1, color="#888888", linewidth=1)
    for place, (title, groups, colour, default) in enumerate(series):
        mark = "D" if default else "o"
        shift = (place - (len(series) - 1) / 2) * 0.7 / len(series)
        label: str | None = title
        for row, name in enumerate(names):
            speed, low, high = _beside(groups[name], default)[1] if name in groups else (None,) * 3
            if speed is None:
                continue
            face = "none" if groups[name].estimate else colour
            axes.plot([low or speed, high or speed], [row + shift] * 2, color=colour, linewidth=1.5)
            axes.plot([speed], [row + shift], mark, color=colour, markerfacecolor=face, markersize=5, label=label)
            label = None
    axes.set_xscale("log")
    axes.set_xticks([0.25, 0.5, 1, 2, 4, 8], ["¼×", "½×", "1×", "2×", "4×", "8×"])
    axes.minorticks_off()
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("speed of bf16 under autocast beside float32 on the same device; lines are 95 % intervals")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=3, frameon=False)
    figure.patch.set_facecolor("white")
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(figure)
    return out.getvalue()


def main() -> None:
    """Write the picture and the part of the page."""
    runs = published()
    PICTURE.write_text(picture(chosen(runs)), encoding="utf-8")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(before + BEGIN + text(runs) + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
