"""The deviations files: they load, their links are links, their globs select cases, and each finding has its page.

The form of a file is tested with `ampcheck.deviations`; here it is about what this package's own files say.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ampcheck.deviations import JIT, KERNELS, SHARED, Deviation, Waivers, load
from ampcheck.devices.registry import known, select
from ampcheck.errors import UsageError
from ampcheck.ids import parse_key, parse_node
from tests.cli_support import LIMIT
from tests.test_findings import SECTIONS

ROOT = Path(__file__).parents[1]
FILES = list(dict.fromkeys([SHARED, JIT, KERNELS, *(d.deviations for d in known().values() if d.deviations)]))
DEVIATIONS = [deviation for path in FILES for deviation in load(path)]

_LINK = re.compile(
    r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+|https://docs\.pytorch\.org/docs/\S+|unreported"
)
_CASE = re.compile(r"\*\*Case:\*\*\s(?P<text>.*?)\*\*Upstream:\*\*", re.DOTALL)


def bad_links(deviations: Iterable[Deviation]) -> list[str]:
    """The ids of deviations whose link is no issue, no pull request, no documentation and not "unreported"."""
    return [deviation.id for deviation in deviations if not _LINK.fullmatch(deviation.link)]


def without_page(deviations: Iterable[Deviation], sections: Mapping[str, str]) -> list[str]:
    """The ids of unreported deviations that docs/findings.md has no section for."""
    return [deviation.id for deviation in deviations if deviation.link == "unreported" and deviation.id not in sections]


def wrong_cases(deviations: Iterable[Deviation], sections: Mapping[str, str]) -> list[str]:
    """A sentence for each section that names a case of another deviation than its own, or has neither case nor reason.

    Only a finding where PyTorch is silent may have no case.
    """
    own: dict[str, set[str]] = {}
    for deviation in deviations:
        own.setdefault(deviation.id, set()).update(deviation.cases)
    everybody = set().union(*own.values())
    out = []
    for name, body in sections.items():
        match = _CASE.search(body)
        text = match["text"] if match else ""
        named = set(re.findall(r"`(\w+/[^`]+)`", text))
        if name not in own:
            if "**Sure:** open" not in body or not text.startswith("none;"):
                out.append(f"{name} is no deviation, and PyTorch is not silent on it")
        elif not named & own[name]:
            out.append(f"{name} names no case of its deviation")
        elif missing := named - everybody:
            out.append(f"{name} names {', '.join(sorted(missing))}, which no deviation does")
    return out


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """The key and the node id of every case of this machine's devices, those of nightly runs among them."""
    manifest = tmp_path_factory.mktemp("manifest") / "manifest"
    command = [sys.executable, "-m", "pytest", "suites", "--collect-only", "-q", "--nightly"]
    command += [f"--write-manifest={manifest}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return manifest.read_text(encoding="utf-8").split(), [line for line in done.stdout.splitlines() if "::" in line]


@pytest.fixture(scope="module")
def names(collected: tuple[list[str], list[str]]) -> list[str]:
    """What deviations call every case, `rule/id`."""
    return [parse_key(key).name for key in collected[0]]


def test_a_node_id_tells_the_key(collected: tuple[list[str], list[str]]) -> None:
    """With pytest-xdist the process that counts what is missing knows the node ids alone."""
    keys, nodes = collected
    assert sorted(parse_node(node).key for node in nodes) == sorted(keys)


def test_every_file_loads() -> None:
    assert len(FILES) >= 5
    assert len(DEVIATIONS) >= 20
    Waivers(known().values())  # no id stands in two files of one device


def test_no_glob_is_stale(names: list[str]) -> None:
    assert len(names) > 1000
    waivers = Waivers(select([], []))
    assert waivers.stale(names) == []
    rest = [name for name in names if not name.startswith("nesting/one_object_inside_itself-")]
    assert any("'nesting/one_object_inside_itself-*'" in line for line in waivers.stale(rest))


def test_every_link_is_one() -> None:
    assert bad_links(DEVIATIONS) == []
    wrong = [replace(DEVIATIONS[0], link=link) for link in ("https://github.com/pytorch/pytorch", "unreported ", "x")]
    assert bad_links(wrong) == [DEVIATIONS[0].id] * 3


def test_every_unreported_one_has_its_page() -> None:
    assert without_page(DEVIATIONS, SECTIONS) == []
    assert without_page([replace(DEVIATIONS[0], id="another", link="unreported")], SECTIONS) == ["another"]


def test_every_page_names_cases_of_its_deviation() -> None:
    assert wrong_cases(DEVIATIONS, SECTIONS) == []


@pytest.mark.parametrize(
    ("name", "sure", "case", "says"),
    [
        ("another", "certain", "`cache/changed_weight-*`", "is no deviation, and PyTorch is not silent on it"),
        ("another", "open", "to be added", "is no deviation, and PyTorch is not silent on it"),
        ("stale-cached-weight", "certain", "none;", "names no case of its deviation"),
        ("stale-cached-weight", "certain", "`cache/off-*`", "names no case of its deviation"),
        ("stale-cached-weight", "certain", "`cache/changed_weight-*`, `cache/off-*`", "names cache/off-*, which no"),
    ],
)
def test_a_page_that_names_others_is_found(name: str, sure: str, case: str, says: str) -> None:
    body = f"**Sure:** {sure}. **Case:** {case}. **Upstream:** unreported."
    (found,) = wrong_cases(DEVIATIONS, {name: body})
    assert found.startswith(f"{name} {says}")


ENTRY = """
[[deviation]]
id = "one"
cases = ["downcast/mm-*"]
kind = "deviation"
reason = "A reason."
link = "unreported"
raises = "x"
torch = ">=2.11"
lacks = "mm bf16"
added = "2026-11-22"
"""


def test_an_entry_of_a_lacking_kernel_applies_where_the_processor_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deviations.toml"
    path.write_text(ENTRY)
    assert load(path) == []  # every processor has this kernel
    monkeypatch.setattr("ampcheck.deviations.lacks", lambda op, dtype: (op, dtype) == ("mm", "bf16"))
    assert [deviation.id for deviation in load(path)] == ["one"]
    path.write_text(ENTRY.replace("mm bf16", "mmm bf16"))
    with pytest.raises(UsageError, match="lacks is 'mmm bf16'; it is an op and a dtype"):
        load(path)
