"""A JUnit file from results, for continuous integration to show."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from xml.etree import ElementTree as xml

from ampcheck.errors import UsageError
from ampcheck.runner.causes import of
from ampcheck.runner.compare import first_line
from ampcheck.runner.results import RED, Result
from ampcheck.runner.summary import text

_TAG = {
    "fail": "failure",
    "broken": "failure",
    "fixed": "failure",
    "error": "error",
    "crash": "error",
    "timeout": "error",
    "missing": "error",
    "deviation": "skipped",
    "unsupported": "skipped",
}
"""What a status is in JUnit's words; a case that passed has none of them."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(
    path: Path,
    results: Collection[Result],
    *,
    started: str,
    seconds: float,
    stale: Collection[str],
    reproduced: Mapping[str, str] | None = None,
) -> None:
    """Write the results, one test case each, and one failure for each stale deviation.

    The `type` of a failure or an error is its cause, by which tools group. `started`: when the run began, in ISO form.
    `reproduced`: what came of running a case's plain torch lines, by its key. Raises UsageError where the file cannot
    be written.
    """
    tags = [_TAG.get(result.status, "") for result in results]
    suite = xml.Element(
        "testsuite",
        name="ampcheck",
        tests=str(len(results) + len(stale)),
        failures=str(tags.count("failure") + len(stale)),
        errors=str(tags.count("error")),
        skipped=str(tags.count("skipped")),
        time=f"{seconds:.3f}",
        timestamp=started,
    )
    for result in results:
        where = f"{result.suite}.{result.rule}"
        case = xml.SubElement(suite, "testcase", classname=where, name=result.id, time=f"{result.seconds:.5f}")
        if tag := _TAG.get(result.status):
            line = first_line(f"{result.status}: {result.message}")
            about = {"type": _clean(of(result))} if result.status in RED else {}
            whole = text(result, reproduced=(reproduced or {}).get(result.key, ""))
            xml.SubElement(case, tag, about, message=_clean(line)).text = _clean(whole)
    for sentence in stale:
        case = xml.SubElement(suite, "testcase", classname="deviations", name=_clean(sentence), time="0")
        xml.SubElement(case, "failure", message="stale deviation").text = _clean(sentence)
    root = xml.Element("testsuites")
    root.append(suite)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(xml.tostring(root, encoding="utf-8", xml_declaration=True))
    except OSError as error:
        raise UsageError(f"the JUnit file {path} cannot be written: {error.strerror}") from error


def _clean(value: str) -> str:
    """Return text without the characters that no XML file may hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", value)
