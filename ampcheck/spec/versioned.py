"""Read and write tables whose rows hold for a range of torch minor versions: their columns `since` and `until`.

`since` is the first version that a row holds for, `until` the last one; an empty `until` means that it still holds.
"""

import csv
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a table: its place for messages, its fields but `since` and `until`, and the versions it holds for."""

    where: str
    fields: dict[str, str]
    versions: tuple[str, ...]


def read(path: Path, columns: Sequence[str], versions: Sequence[str]) -> Iterator[Line]:
    """Yield the lines of a table.

    Args:
        path: the CSV file.
        columns: its columns, `since` and `until` among them.
        versions: the minor versions that a line may name, oldest first.

    Raises:
        ValueError: the file has other columns, or a line another number of fields or a range that is empty or names an
            unknown version. The sentence names the file and the line.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        if next(reader, []) != list(columns):
            raise ValueError(f"{path.name}: the first line must be {','.join(columns)}")
        for values in reader:
            where = f"{path.name} line {reader.line_num}"
            if len(values) != len(columns):
                raise ValueError(f"{where} has {len(values)} fields instead of {len(columns)}")
            fields = dict(zip(columns, values, strict=True))
            since, until = fields.pop("since"), fields.pop("until") or versions[-1]
            for version in (since, until):
                if version not in versions:
                    raise ValueError(f"{where} names torch {version!r}; known: {', '.join(versions)}")
            first, last = versions.index(since), versions.index(until)
            if last < first:
                raise ValueError(f"{where} ends with torch {until}, before it begins with {since}")
            yield Line(where, fields, tuple(versions[first : last + 1]))


def write(path: Path, columns: Sequence[str], lines: Iterable[tuple[str, ...]]) -> None:
    """Write a table of these lines, sorted."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(sorted(lines))


def ranges(tables: Mapping[str, Mapping[K, V]]) -> Iterator[tuple[K, V, tuple[str, ...]]]:
    """Yield each key and value of some tables with the versions, one after the other, in which the key has that value.

    `tables`: the table of each version, oldest first.
    """
    versions = tuple(tables)
    for key in dict.fromkeys(key for table in tables.values() for key in table):
        held: list[str] = []
        for place, version in enumerate(versions):
            if key not in tables[version]:
                continue
            held.append(version)
            value = tables[version][key]
            later = tables[versions[place + 1]] if place + 1 < len(versions) else {}
            if key not in later or later[key] != value:
                yield key, value, tuple(held)
                held = []


def bounds(held: Sequence[str], versions: Sequence[str]) -> tuple[str, str]:
    """Return the `since` and `until` of a range of versions; one that reaches the newest has an empty `until`."""
    return held[0], "" if held[-1] == versions[-1] else held[-1]
