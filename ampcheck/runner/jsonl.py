"""Files of one JSON object a line, a header first and a footer last, that are never rewritten."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampcheck.errors import UsageError


class JsonlWriter:
    """Writes such a file line by line; each line is on disk when `put` returns.

    Raises UsageError where the file is there already or cannot be made.
    """

    def __init__(self, path: Path, what: str, header: Mapping[str, Any]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("x", encoding="utf-8", buffering=1)
        except OSError as error:
            raise UsageError(f"the {what} {path} cannot be written: {error.strerror}") from error
        self.path = path
        self.put("header", header)

    def put(self, kind: str, line: Mapping[str, Any]) -> None:
        """Append a line."""
        self._file.write(json.dumps({"kind": kind, **line}, separators=(",", ":")) + "\n")

    def close(self, footer: Mapping[str, Any]) -> None:
        """Append the footer; the file is complete."""
        self.put("footer", footer)
        self._file.close()


@dataclass(slots=True)
class Lines:
    """What a file holds: the header, the lines between with their numbers, the footer if it has one.

    `note` says what is wrong with its end, "" if nothing.
    """

    header: dict[str, Any]
    body: list[tuple[int, dict[str, Any]]]
    footer: dict[str, Any] | None
    note: str


def read(path: Path, what: str, schema: int | str, kinds: tuple[str, ...], older: tuple[int | str, ...] = ()) -> Lines:
    """Read a file, up to its last whole line where it was cut off.

    Args:
        what: what it should be, for messages, e.g. "run file".
        schema: what its header must say.
        kinds: the kinds of lines it may have between header and footer.
        older: other schemas that the caller can read.

    Raises UsageError where it is no such file, is of another schema, or is damaged before its last line.
    """
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"the {what} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a {what}: {error.reason} at byte {error.start}") from error
    found: Lines | None = None
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            if found is None or number < len(texts):
                raise UsageError(f"{path}, line {number}: not JSON, so this is not a complete {what}") from error
            found.note = f"line {number} is cut off"
            break
        if found is None:
            found = Lines(_header(path, what, schema, older, line), [], None, "")
        elif not isinstance(line, dict):
            raise UsageError(f"{path}, line {number}: not an object, so this is not a complete {what}")
        elif line.get("kind") in kinds:
            found.body.append((number, line))
        elif line.get("kind") == "footer":
            found.footer = line
        else:
            wanted = ", ".join(kinds)
            raise UsageError(f"{path}, line {number}: kind is {line.get('kind')!r}; expected {wanted} or footer")
    if found is None:
        raise UsageError(f"{path} is empty")
    if found.footer is None and not found.note:
        found.note = "the run was interrupted"
    return found


def _header(path: Path, what: str, schema: int | str, older: tuple[int | str, ...], line: Any) -> dict[str, Any]:
    if not isinstance(line, dict) or line.get("kind") != "header":
        raise UsageError(f"{path} is not a {what}: its first line is not a header")
    if line.get("schema") not in (schema, *older):
        raise UsageError(f"{path} has schema {line.get('schema')!r}; this ampcheck reads schema {schema}")
    return line
