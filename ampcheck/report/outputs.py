"""Describe the files that other programs read, as a JSON schema made of the classes that are written.

`python -m ampcheck.report.outputs` prints it. docs/using.md, "What other programs read", has the same as tables.
"""

import json
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ampcheck.bench.core.model import Group, Rounds, VariantResult
from ampcheck.bench.run.runfile import SCHEMA as BENCH_SCHEMA
from ampcheck.runner.record import SCHEMA, Result
from ampcheck.runner.summarize import Change, Comparison

Definition = dict[str, Any]
"""A JSON schema of one value."""


class RunDevice(msgspec.Struct):
    """A device of a run. What the device tells of itself may be further fields."""

    name: Annotated[str, Meta(description="Name of the device.")]
    type: Annotated[str, Meta(description="Device type of torch.")]
    key: Annotated[str, Meta(description="Dispatch key of its autocast.")]
    has_values: Annotated[bool, Meta(description="Whether its tensors have values; virtual ones do not.")]
    token: Annotated[str, Meta(description="The device's part of the ids of cases.")] = ""


class RunHeader(msgspec.Struct):
    """The first line of a run file."""

    schema: Annotated[int, Meta(description="The schema's number.", extra_json_schema={"const": SCHEMA})]
    started: Annotated[str, Meta(description="When the run began, UTC, ISO 8601.")]
    command: Annotated[list[str], Meta(description="The command and its arguments.")]
    manifest: Annotated[str, Meta(description="Hash of the keys of all cases: equal manifests have equal hashes.")]
    cases: Annotated[int, Meta(description="How many cases were to run.", ge=0)]
    seed: Annotated[int, Meta(description="Seed of the random programs.")]
    nightly: Annotated[bool, Meta(description="Whether the nightly cases ran.")]
    versions: Annotated[
        dict[str, str], Meta(description="Versions of what decides results, by package; `python` among them.")
    ]
    devices: Annotated[list[RunDevice], Meta(description="The devices, each a `run_device`.")]
    absent: Annotated[dict[str, str], Meta(description="Devices that were not there, by name, with the reason.")]
    machine: Annotated[dict[str, Any], Meta(description="`system`, `release`, `machine` and `cores`.")]
    shard: Annotated[
        str, Meta(description="The share of the cases, as 1/4; absent where all ran.", pattern=r"^[0-9]+/[0-9]+$")
    ] = ""
    smoke: Annotated[bool, Meta(description="Whether it was a smoke run.")] = False
    preflight: Annotated[list[str], Meta(description="Sentences of the checks before the run.")] = []
    drift: Annotated[list[str], Meta(description="Sentences about ops whose policy is another than the table's.")] = []
    processes: Annotated[int, Meta(description="How many processes ran the cases.", ge=1)] = 1
    rules: Annotated[dict[str, int], Meta(description="How many cases of each suite and rule were to run.")] = {}


class RunFooter(msgspec.Struct):
    """The last line of a run file. A run without it was interrupted."""

    counts: Annotated[dict[str, int], Meta(description="How many cases ended with each status.")]
    seconds: Annotated[float, Meta(description="Wall time of the run, in seconds.", ge=0)]
    stale: Annotated[list[str], Meta(description="Sentences about deviations that matched nothing.")] = []
    notes: Annotated[list[str], Meta(description="Sentences about what happened during the run.")] = []
    reproduced: Annotated[
        dict[str, str], Meta(description="Of causes, whether their plain torch reproduces them, in a sentence.")
    ] = {}


class BenchHeader(msgspec.Struct):
    """The first line of a benchmark file."""

    schema: Annotated[str, Meta(description="The schema's name.", extra_json_schema={"const": BENCH_SCHEMA})]
    started: Annotated[str, Meta(description="When the run began, UTC, ISO 8601.")]
    command: Annotated[list[str], Meta(description="The command and its arguments.")]
    mode: Annotated[str, Meta(description="How much was measured.", extra_json_schema={"enum": ("quick", "full")})]
    versions: Annotated[dict[str, str], Meta(description="Versions of what decides results, by package.")]
    machine: Annotated[dict[str, Any], Meta(description="Processor, cores, memory in bytes, load, settings of torch.")]
    devices: Annotated[dict[str, Any], Meta(description="What each device tells of itself, by name.")]
    threads: Annotated[int, Meta(description="Threads of each library.", ge=1)] = 1
    identity: Annotated[
        str, Meta(description="Hash of what makes times comparable: times of two identities are not compared.")
    ] = ""
    groups: Annotated[list[str], Meta(description="Keys of the groups that were to be measured.")] = []
    ceilings: Annotated[
        dict[str, dict[str, float]],
        Meta(description="By device, the highest rate in flop/s by precision, and `bandwidth` in bytes/s."),
    ] = {}
    ceilings_source: Annotated[dict[str, str], Meta(description="By device, where its ceilings come from.")] = {}


class BenchFooter(msgspec.Struct):
    """The last line of a benchmark file. A run without it was interrupted."""

    seconds: Annotated[float, Meta(description="Wall time of the run, in seconds.", ge=0)]
    interrupted: Annotated[bool, Meta(description="Whether it was ended before its last group.")] = False


class Badge(msgspec.Struct):
    """`badge.json` of the site: an endpoint badge of shields.io."""

    schemaVersion: Annotated[
        int, Meta(description="The number that shields.io asks for.", extra_json_schema={"const": 1})
    ]
    label: Annotated[str, Meta(description="`ampcheck`.")]
    message: Annotated[str, Meta(description="The newest run in a few words.")]
    color: Annotated[
        str,
        Meta(
            description="Green where nothing is red, red where something is, grey where the run is incomplete or "
            "nothing ran.",
            pattern="^#[0-9a-f]{6}$",
        ),
    ]


class BenchmarkEntry(msgspec.Struct):
    """An entry for github-action-benchmark."""

    name: Annotated[
        str,
        Meta(description="`device/compiler/workload/variant`, with ` (estimate)` behind it where a compiler gave it."),
    ]
    unit: Annotated[str, Meta(description="Seconds.", extra_json_schema={"const": "s"})]
    value: Annotated[float, Meta(description="Median time of one call, in seconds.", ge=0)]
    extra: Annotated[str, Meta(description="Verdict, speed and error, a line each.")]
    range: Annotated[
        str, Meta(description="Half the width of the middle 90 % of the samples, in seconds, behind `± `.")
    ] = ""


@dataclass(frozen=True)
class Output:
    """A definition of the schema.

    `kind`: the kind of a line of a file. `always`: fields with a default that are always written. `absent`: fields
    without one that are left out where they say nothing.
    """

    of: type
    description: str = ""
    kind: str = ""
    always: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


OUTPUTS = {
    "run_header": Output(RunHeader, kind="header"),
    "run_device": Output(RunDevice),
    "run_case": Output(
        Result,
        "A line of a run file for each case; of two with one key the later counts. Texts that are empty are absent.",
        "case",
    ),
    "run_footer": Output(RunFooter, kind="footer"),
    "bench_header": Output(BenchHeader, kind="header"),
    "bench_rounds": Output(
        Rounds,
        "A line of a benchmark file for each process and group: raw samples. The same round of two variants is a pair.",
        "rounds",
        always=("samples",),
    ),
    "bench_group": Output(
        Group,
        "A line of a benchmark file for each group, below its key `group`. Fields that say nothing are absent.",
        always=("variants",),
        absent=("family",),
    ),
    "bench_variant": Output(VariantResult, "A variant of a group. What is not known is absent."),
    "bench_footer": Output(BenchFooter, kind="footer"),
    "changes": Output(
        Comparison,
        "`changes.json` of the site, and `ampcheck compare --format json`: the newest run beside the one before. "
        "`{}` where there is one run.",
        always=("notes", "unchanged"),
    ),
    "change": Output(Change, "A case of `changes.json`.", always=("message",)),
    "badge": Output(Badge),
    "smaller_is_better": Output(
        BenchmarkEntry,
        "An entry of the list `bench_smaller_is_better.json` of the site, for github-action-benchmark: valid variants "
        "only.",
    ),
}
"""What is written, by the name of its definition, in the order of the page."""


_UNCHANGED = {"type": "integer", "minimum": 0, "description": "How many common cases have the same status."}
"""`changes.json` has this property of `Comparison` too, which msgspec does not see."""


def definitions() -> dict[str, Definition]:
    """Return the fields of each output: the schema of one object."""
    names = {output.of.__name__: name for name, output in OUTPUTS.items()}
    _, made = msgspec.json.schema_components([output.of for output in OUTPUTS.values()], ref_template="{name}")
    found = {names.get(name, name): _plain(definition, names) for name, definition in made.items()}
    found["changes"]["properties"]["unchanged"] = _UNCHANGED
    for name, output in OUTPUTS.items():
        one = found[name]
        one["description"] = output.description or one["description"]
        one["required"] = [*(f for f in one["required"] if f not in output.absent), *output.always]
        if output.kind:
            said = {"const": output.kind, "description": "Which kind of line it is."}
            one["properties"] = {"kind": said, **one["properties"]}
            one["required"] = ["kind", *one["required"]]
    return found


def schema() -> Definition:
    """Return the JSON schema of every output: `$defs` has `run_line`, `bench_line`, `changes`, `badge` and more."""
    found = definitions()
    group, entry, changes = found["bench_group"], found["smaller_is_better"], found["changes"]
    found["bench_group"] = {
        "description": group["description"],
        "type": "object",
        "required": ["kind", "group"],
        "properties": {
            "kind": {"const": "group", "description": "Which kind of line it is."},
            "group": {**group, "description": "The fields below."},
        },
    }
    found["smaller_is_better"] = {"description": entry["description"], "type": "array", "items": entry}
    described = changes.pop("description")
    found["changes"] = {"description": described, "anyOf": [{"type": "object", "maxProperties": 0}, changes]}
    for line, what in (("run_line", "a run file"), ("bench_line", "a benchmark file")):
        suite = line.removesuffix("line")
        kinds = [name for name, one in found.items() if name.startswith(suite) and "kind" in one.get("required", ())]
        refs = [{"$ref": f"#/$defs/{name}"} for name in kinds]
        found[line] = {"description": f"Any line of {what}.", "oneOf": refs}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What programs read of ampcheck",
        "description": "docs/using.md, What other programs read. New fields may come at any time.",
        "$defs": found,
    }


def _plain(value: Any, names: dict[str, str]) -> Any:
    """Return a part of msgspec's schema without defaults and nulls, since a field that says nothing is not written."""
    if isinstance(value, (list, tuple)):
        return [_plain(one, names) for one in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return {"$ref": f"#/$defs/{names.get(value['$ref'], value['$ref'])}"}
    kept = {key: _plain(inner, names) for key, inner in value.items() if key not in ("default", "title", "anyOf")}
    for one in value.get("anyOf", ()):
        if one != {"type": "null"}:
            kept.update(_plain(one, names))
    return kept


if __name__ == "__main__":
    json.dump(schema(), sys.stdout, indent=1, ensure_ascii=False)
