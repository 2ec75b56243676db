"""What programs read: each output is as `ampcheck.report.schema()` says."""

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ampcheck.bench.run.runfile import SCHEMA as BENCH_SCHEMA
from ampcheck.report import schema, site
from ampcheck.report.outputs import OUTPUTS, definitions
from ampcheck.runner.record import Result
from tests.cli_support import ROOT, run
from tests.report import made_bench
from tests.report.made_runs import make, write

SCHEMA = schema()
DEFINITIONS: dict[str, Any] = SCHEMA["$defs"]
Made = tuple[str, Any]
"""A definition's name and a value that is to be as it says."""


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({"$defs": DEFINITIONS, "$ref": f"#/$defs/{name}"})


def lines(name: str, path: Path) -> Iterator[Made]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield name, json.loads(line)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[Made]:
    """One run of a real device, two made ones with a regression and each text filled, two bench, and their site."""
    folder = tmp_path_factory.mktemp("outputs")
    run(folder, "run", "--device", "cpu", "--op", "mm", "--rule", "downcast", "--run-file", "real.jsonl", code=0)
    empty = {f.name for f in fields(Result) if f.default == ""} - {"op", "amp", "device", "inputs"}
    first = write(folder / "1.jsonl", [make("add"), make("gone"), make("mul", "fail", message="x")])
    results = [make("add", "fail", **dict.fromkeys(empty, "text")), make("new"), make("mul")]
    runs = [first, write(folder / "2.jsonl", results, started="2026-11-21T02:00:00Z")]
    bench = made_bench.two_run_groups(folder / "bench")
    header = f'"schema":"{BENCH_SCHEMA}"'
    published = [f for f in (ROOT / "reports/published/bench").glob("*.jsonl") if header in f.read_text("utf-8")]
    place = folder / "site"
    site.build([*runs, *bench], place)
    files = {"changes": "changes.json", "badge": "badge.json", "smaller_is_better": "bench_smaller_is_better.json"}
    exported = {name: json.loads((place / file).read_text(encoding="utf-8")) for name, file in files.items()}
    assert exported["changes"]["regressed"]
    assert exported["smaller_is_better"]
    return [
        *(made for file in (folder / "real.jsonl", *runs) for made in lines("run_line", file)),
        *(made for file in (*bench, *published) for made in lines("bench_line", file)),
        *exported.items(),
        ("changes", {}),
    ]


def test_every_output_is_as_the_schema_says(outputs: list[Made]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validators = {name: validator(name) for name, _ in outputs}
    wrong = [f"{name}: {error.message}" for name, value in outputs for error in validators[name].iter_errors(value)]
    assert wrong == []
    assert {value["kind"] for name, value in outputs if name.endswith("_line")} == {
        *("header", "case", "footer", "rounds", "group")
    }


def objects(name: str, value: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each object in a value for whose fields the schema has words, with these; the value's own objects."""
    definition = DEFINITIONS.get(name, {})
    if name.endswith("_line"):
        definition = DEFINITIONS[f"{name.removesuffix('line')}{value['kind']}"]
    definition = definition.get("anyOf", [definition])[-1]
    if isinstance(value, list):
        yield value[0], definition["items"]
    elif value:
        yield value, definition
        if value.get("kind") == "group":
            yield value["group"], definition["properties"]["group"]
            yield value["group"]["variants"][0], DEFINITIONS["bench_variant"]
        if name == "changes":
            yield value["regressed"][0], DEFINITIONS["change"]


def test_a_field_that_is_absent_or_of_another_type_is_noticed(outputs: list[Made]) -> None:
    seen: dict[int, set[str]] = {}
    for name, original in outputs:
        value, valid = deepcopy(original), validator(name).is_valid
        for inside, definition in objects(name, value):
            fresh = set(inside) - seen.setdefault(id(definition), set())
            seen[id(definition)] |= fresh
            for field in sorted(fresh & set(definition["properties"])):
                kept = inside.pop(field)
                assert valid(value) == (field not in definition["required"]), (name, field)
                inside[field] = 7 if isinstance(kept, str) else "7"
                assert not valid(value), (name, field)
                inside[field] = kept
            assert valid(value)
    assert len(seen) == len(OUTPUTS)  # a line of a group holds the group, and devices are not looked into


def test_each_field_of_a_line_has_its_words(outputs: list[Made]) -> None:
    for definition in definitions().values():
        assert all(words["description"] for words in definition["properties"].values())
    for name, value in outputs:
        if name.endswith("_line") and value["kind"] in ("header", "footer"):
            words = DEFINITIONS[f"{name.removesuffix('line')}{value['kind']}"]["properties"]
            assert set(value) - set(words) == set()
