"""What programs read: each output is as ampcheck/report/outputs.schema.json says, which docs/using.md repeats."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ampcheck.bench.core.model import Group, Rounds, VariantResult
from ampcheck.bench.run.runfile import SCHEMA as BENCH_SCHEMA
from ampcheck.report import site
from ampcheck.runner.compare import Change, Comparison
from ampcheck.runner.results import Result
from tests.cli_support import ROOT, run
from tests.report import made_bench

SCHEMA = json.loads(resources.files("ampcheck.report").joinpath("outputs.schema.json").read_text(encoding="utf-8"))
DEFINITIONS: dict[str, Any] = SCHEMA["$defs"]
SHOWN = {
    "run_header": "Run files",
    "run_case": "",
    "run_footer": "",
    "bench_header": "Benchmark files",
    "bench_rounds": "",
    "bench_group": "",
    "bench_variant": "",
    "bench_footer": "",
    "changes": "Exports of the site",
    "change": "",
    "badge": "",
    "smaller_is_better": "",
}
"""The definitions in the order of the page, the first of a part with its heading."""

Made = tuple[str, Any]
"""A definition's name and a value that is to be as it says."""


def valid(name: str, value: Any) -> bool:
    """Whether a value is as a definition says."""
    return validator(name).is_valid(value)


def validator(name: str) -> jsonschema.Draft202012Validator:
    """The validator of a definition."""
    return jsonschema.Draft202012Validator({"$defs": DEFINITIONS, "$ref": f"#/$defs/{name}"})


def lines(name: str, path: Path) -> Iterator[Made]:
    """The lines of a file."""
    for line in path.read_text(encoding="utf-8").splitlines():
        yield name, json.loads(line)


@pytest.fixture(scope="module")
def outputs(
    tmp_path_factory: pytest.TempPathFactory, make: Callable[..., Result], write: Callable[..., Path]
) -> list[Made]:
    """One run of a real device, two made ones with a regression and each text filled, two bench, and their site."""
    folder = tmp_path_factory.mktemp("outputs")
    done = run(folder, "run", "--device", "cpu", "--op", "mm", "--rule", "downcast", "--run-file", "real.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr
    texts = {
        f.name: "text" for f in fields(Result) if f.default == "" and f.name not in ("op", "amp", "device", "inputs")
    }
    runs = [
        write(folder / "1.jsonl", [make("add"), make("gone"), make("mul", "fail", message="x")]),
        write(
            folder / "2.jsonl", [make("add", "fail", **texts), make("new"), make("mul")], started="2026-11-21T02:00:00Z"
        ),
    ]
    bench = made_bench.two_run_groups(folder / "bench")
    header = f'"schema":"{BENCH_SCHEMA}"'
    published = [
        file for file in (ROOT / "reports/published/bench").glob("*.jsonl") if header in file.read_text("utf-8")
    ]
    place = folder / "site"
    site.build([*runs, *bench], place)
    exported = {
        name: json.loads((place / file).read_text(encoding="utf-8"))
        for name, file in (
            ("changes", "changes.json"),
            ("badge", "badge.json"),
            ("smaller_is_better", "bench_smaller_is_better.json"),
        )
    }
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
        value = deepcopy(original)
        for inside, definition in objects(name, value):
            fresh = set(inside) - seen.setdefault(id(definition), set())
            seen[id(definition)] |= fresh
            for field in sorted(fresh & set(definition["properties"])):
                kept = inside.pop(field)
                assert valid(name, value) == (field not in definition["required"]), (name, field)
                inside[field] = 7 if isinstance(kept, str) else "7"
                assert not valid(name, value), (name, field)
                inside[field] = kept
            assert valid(name, value)
    assert len(seen) == len(SHOWN) + 1  # a line of a group holds the group


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("run_case", {"kind", *(f.name for f in fields(Result))}),
        ("bench_rounds", {"kind", *(f.name for f in fields(Rounds))}),
        ("bench_variant", {f.name for f in fields(VariantResult)}),
        ("change", {f.name for f in fields(Change)}),
    ],
)
def test_each_field_has_its_words(name: str, known: set[str]) -> None:
    assert set(DEFINITIONS[name]["properties"]) == known


def test_each_field_of_what_is_nested_has_its_words(outputs: list[Made]) -> None:
    group = DEFINITIONS["bench_group"]["properties"]["group"]["properties"]
    assert set(group) == {f.name for f in fields(Group)}
    changes = DEFINITIONS["changes"]["anyOf"][1]["properties"]
    assert set(changes) == {"unchanged", *(f.name for f in fields(Comparison))}
    for name, value in outputs:
        if name.endswith("_line") and value["kind"] in ("header", "footer"):
            words = DEFINITIONS[f"{name.removesuffix('line')}{value['kind']}"]["properties"]
            assert set(value) - set(words) == set()


def test_the_page_says_what_the_schema_says() -> None:
    page = (ROOT / "docs" / "using.md").read_text(encoding="utf-8")
    assert rendered() in page, f"docs/using.md, What other programs read, should have:\n{rendered()}"


def rendered() -> str:
    """The tables of the page."""
    parts = []
    for name, heading in SHOWN.items():
        definition = DEFINITIONS[name]
        inside = definition.get("anyOf", [definition])[-1]
        inside = inside.get("items", inside)
        parts += [f"### {heading}\n"] if heading else []
        parts += [f"`{name}`: {definition['description']}\n", "| field | type | meaning |", "| --- | --- | --- |"]
        parts += rows(inside)
        if name == "bench_group":
            parts += rows(inside["properties"]["group"])
        parts.append("")
    return "\n".join(parts)


def rows(definition: dict[str, Any]) -> list[str]:
    """A row for each field."""
    found = []
    for field, words in definition["properties"].items():
        kind = f"`{json.dumps(words['const'])}`" if "const" in words else words["type"]
        optional = "" if field in definition["required"] else ", optional"
        choice = f" One of {', '.join(f'`{one}`' for one in words['enum'])}." if "enum" in words else ""
        found.append(f"| `{field}` | {kind}{optional} | {words['description']}{choice} |")
    return found
