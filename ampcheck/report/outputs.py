"""Describe the files that other programs read, as a JSON schema made of `outputs.toml` and the classes it names.

`python -m ampcheck.report.outputs` prints it. docs/using.md, "What other programs read", has the same as tables.
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from ampcheck.bench.core.model import Group, Rounds, VariantResult
from ampcheck.bench.run.runfile import SCHEMA as BENCH_SCHEMA
from ampcheck.runner.record import SCHEMA, Result
from ampcheck.runner.summarize import Change, Comparison

Definition = dict[str, Any]
"""A JSON schema of one value."""

OUTPUTS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""What is written, by the name of its definition, in the order of the page; the file says what each field of it is."""
for _line, _schema in (("run_header", SCHEMA), ("bench_header", BENCH_SCHEMA)):
    OUTPUTS[_line]["fields"]["schema"]["const"] = _schema
_CLASSES = (Result, Rounds, Group, VariantResult, Comparison, Change)


def definitions() -> dict[str, Definition]:
    """Return the fields of each output: the schema of one object."""
    names = {row["of"]: name for name, row in OUTPUTS.items() if "of" in row}
    _, made = msgspec.json.schema_components(_CLASSES, ref_template="{name}")
    found = {names.get(name, name): _plain(definition, names) for name, definition in made.items()}
    # A property of `Comparison`, which msgspec does not see.
    found["changes"]["properties"]["unchanged"] = {"type": "integer", "minimum": 0}
    for name, row in OUTPUTS.items():
        if "of" not in row:
            required = [field for field in row["fields"] if field not in row.get("optional", ())]
            found[name] = {"type": "object", "properties": dict(row["fields"]), "required": required}
        one = found[name]
        for field, words in row.get("fields", {}).items() if "of" in row else ():
            one["properties"][field]["description"] = words
        one["description"] = row.get("description") or one["description"]
        one["required"] = [*(f for f in one["required"] if f not in row.get("absent", ())), *row.get("always", ())]
        if "kind" in row:
            said = {"const": row["kind"], "description": "Which kind of line it is."}
            one["properties"] = {"kind": said, **one["properties"]}
            one["required"] = ["kind", *one["required"]]
    return {name: found[name] for name in OUTPUTS}


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
