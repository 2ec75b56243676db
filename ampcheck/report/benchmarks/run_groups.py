"""Choose the benchmark runs of a site: read and check files, put those of a run group together, keep the newest."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ampcheck.bench.core.model import Group, VariantResult
from ampcheck.bench.core.table import INVALID
from ampcheck.bench.run import exports
from ampcheck.bench.run.runfile import SCHEMA, BenchRun, read
from ampcheck.report.history import grouped, header_of, together

CAP = 400
"""A site holds this many run groups at most."""


@dataclass(frozen=True, slots=True)
class RunGroup:
    """The benchmark files of one occasion: they start close to each other and have no group in common.

    `name`: its name in addresses. `groups` by key. `source`: the run that each group is of.
    """

    name: str
    runs: tuple[BenchRun, ...]
    groups: Mapping[str, Group]
    source: Mapping[str, BenchRun]

    @property
    def started(self) -> str:
        """The start of its first file."""
        return min(str(run.header.get("started", "")) for run in self.runs)

    @property
    def note(self) -> str:
        """Say what is wrong with the ends of its files, "" if nothing."""
        return "; ".join(note for run in self.runs if (note := exports.incomplete(run)))

    @property
    def torch(self) -> str:
        """Its torch version."""
        return str(self.runs[0].header.get("versions", {}).get("torch", ""))

    def result(self, key: str, variant: str) -> VariantResult | None:
        """Return a variant's result, None where the run group does not have it."""
        group = self.groups.get(key)
        return group.variant(variant) if group else None

    def samples(self) -> exports.Samples:
        """Return the raw samples of its files."""
        return {key: variants for run in self.runs for key, variants in exports.samples(run.path).items()}


@dataclass(frozen=True, slots=True)
class BenchHistory:
    """The run groups of a site, newest first. `left_out`: how many older files are not in it."""

    run_groups: tuple[RunGroup, ...] = ()
    left_out: int = 0

    @property
    def newest(self) -> RunGroup | None:
        """The run group the site is about, None without any."""
        return self.run_groups[0] if self.run_groups else None

    @property
    def latest(self) -> RunGroup | None:
        """Every group from the newest run group that has it: devices are seldom all measured at once."""
        if not self.run_groups:
            return None
        source = {key: run for run_group in reversed(self.run_groups) for key, run in run_group.source.items()}
        runs = {id(run): run for run in source.values()}
        newest_first = sorted(runs.values(), key=lambda run: str(run.header.get("started", "")), reverse=True)
        groups = {key: run.groups[key] for key, run in source.items()}
        return RunGroup(self.run_groups[0].name, tuple(newest_first), groups, source)

    @property
    def previous(self) -> RunGroup | None:
        """The run group that the newest is compared with: of the earlier ones with a group in common, the latest.

        A complete one with at least half of the newest run group's groups is preferred.
        """
        if not self.run_groups:
            return None
        mine = self.run_groups[0].groups.keys()

        def rank(run_group: RunGroup) -> tuple[bool, bool]:
            return not run_group.note, 2 * len(run_group.groups.keys() & mine) >= len(mine)

        return max((g for g in self.run_groups[1:] if g.groups.keys() & mine), key=rank, default=None)


def is_bench(path: Path) -> bool:
    """Return whether to read a file as a benchmark file: its header says so, or it lies in a folder named "bench".

    A file without a readable header in such a folder is then refused as a benchmark file, not as a run file.
    """
    header = header_of(path)
    if "schema" in header:
        return str(header["schema"]).startswith(SCHEMA.partition("-")[0])
    return path.parent.name == "bench"


def load(paths: Sequence[Path], cap: int = CAP) -> BenchHistory:
    """Read the newest benchmark files and merge those of one run group; no files are no run groups.

    Raises UsageError for a file that is not a benchmark file or holds what cannot have been measured.
    """
    kept, left_out = grouped(paths, read, _same_run_group, cap)
    names: Counter[str] = Counter()
    made = []
    for parts in reversed(kept):
        started = min(str(part.header.get("started", "")) for part in parts)
        names[started] += 1
        name = started if names[started] == 1 else f"{started}~{names[started]}"
        source = {key: run for run in parts for key in run.groups}
        made.append(RunGroup(name, tuple(parts), {key: run.groups[key] for key, run in source.items()}, source))
    return BenchHistory(tuple(reversed(made)), left_out)


def valid(variant: VariantResult | None) -> bool:
    """Return whether a variant's figures are of what its name says."""
    return variant is not None and variant.verdict not in INVALID and variant.seconds is not None


def usable(variant: VariantResult) -> bool:
    """Return whether a variant has a speed that can be drawn."""
    return valid(variant) and variant.verdict != "unstable" and variant.speed is not None


def order(group: Group) -> tuple[str, str, int, str, str, str]:
    """Return the place of a group among others: by family, along its sizes, then by device."""
    return (group.family, group.base, group.size, group.workload, group.device, group.compiler)


def _same_run_group(parts: Sequence[BenchRun], run: BenchRun) -> bool:
    torch = {part.header.get("versions", {}).get("torch") for part in (*parts, run)}
    close = together(part.header for part in (*parts, run))
    return close and len(torch) == 1 and not any(part.groups.keys() & run.groups.keys() for part in parts)
