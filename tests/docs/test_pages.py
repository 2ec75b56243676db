"""The links of the Markdown files and the pages that code names exist, and findings have what is said of them."""

import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
from packaging.specifiers import SpecifierSet

import ampcheck
from ampcheck.devices.registry import known
from ampcheck.observe.isolation import reset
from ampcheck.spec.case import COMPILERS, RULES
from ampcheck.spec.state import FLOATING
from scripts import api_page, findings
from tests.cli_support import LIMIT, ROOT, collected

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HERE = re.compile(r"^https://(?:github\.com/ampcheck/ampcheck/blob|raw\.githubusercontent\.com/ampcheck/\w+)/main/")
_NAMED = re.compile(r"(?<![\w./-])docs/[\w./-]+\.md\b")


def files(*endings: str) -> list[Path]:
    """The repository's own files with one of some endings."""
    folders = [ROOT / name for name in ("ampcheck", "bench", "docs", "scripts", "suites", "tests", ".github")]
    found = [*ROOT.glob("*"), *(ROOT / "reports").glob("*"), *(p for folder in folders for p in folder.rglob("*"))]
    return sorted(path for path in found if path.suffix in endings and path.is_file())


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere in the repository."""
    out = []
    for target in _LINK.findall(_FENCE.sub("", text)):
        place, _, anchor = target.partition("#")
        name = _HERE.sub("", place)  # the page of a package index has the README's text, and no files beside it
        if re.match(r"\w+:", name):
            continue
        file = (ROOT if name != place else page.parent) / name if name else page
        there = text if not name else file.read_text(encoding="utf-8") if file.suffix == ".md" and file.exists() else ""
        if not file.exists() or (anchor and anchor not in anchors(there)):
            out.append(target)
    return out


def test_links_lead_somewhere() -> None:
    found = {str(page.relative_to(ROOT)): broken(page, page.read_text(encoding="utf-8")) for page in files(".md")}
    assert {page: targets for page, targets in found.items() if targets} == {}


def test_a_link_that_leads_nowhere_is_found() -> None:
    page = ROOT / "docs" / "using.md"
    text = "# A page\n\n[a](gone.md) [b](using.md#gone) [c](#gone) [d](#a-page) [e](using.md#trace) [f](https://x.org/#y)\n"
    away = "https://github.com/ampcheck/ampcheck/blob/main/docs/gone.md"
    assert broken(page, f"{text}[g]({away})\n") == ["gone.md", "using.md#gone", "#gone", away]


def test_the_readme_has_no_relative_links() -> None:
    links = _LINK.findall(_FENCE.sub("", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert len(links) > 15
    assert [target for target in links if not re.match("https://|#", target)] == []


def test_the_page_of_what_to_import_is_of_the_docstrings() -> None:
    assert api_page.PAGE.read_text(encoding="utf-8") == api_page.page(), "python -m scripts.api_page writes it"
    assert set(api_page.PUBLIC["ampcheck"]) == set(ampcheck.__all__)


def test_files_and_modules_that_pages_name_exist() -> None:
    gone = []
    for page in files(".md"):
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"`((?:ampcheck|bench|docs|scripts|suites|tests|\.github)/[a-z0-9_./]+)`", text)
        modules = re.findall(r"`(ampcheck(?:\.\w+)+)`", text)
        gone += [f"{page.name}: {name}" for name in named if not (ROOT / name).exists()]
        gone += [f"{page.name}: {name}" for name in modules if not is_there(name.split("."))]
    assert gone == []


def is_there(parts: list[str]) -> bool:
    """Whether a dotted name is a module, or a name that a module mentions."""
    while parts and not (ROOT.joinpath(*parts).is_dir() or ROOT.joinpath(*parts).with_suffix(".py").exists()):
        *parts, name = parts
        file = ROOT.joinpath(*parts).with_suffix(".py")
        file = file if file.exists() else ROOT.joinpath(*parts, "__init__.py")
        if file.exists():
            return re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")) is not None
    return bool(parts)


def test_a_module_that_is_gone_is_found() -> None:
    assert is_there(["ampcheck", "spec", "rules"])
    assert is_there(["ampcheck", "spec", "rules", "RULES"])
    assert not is_there(["ampcheck", "spec", "gone"])
    assert not is_there(["ampcheck", "spec", "rules", "GONE"])


def test_pages_that_code_names_exist() -> None:
    named = {
        (name, str(path.relative_to(ROOT)))
        for path in files("", ".py", ".toml", ".yml", ".cpp", ".html", ".js")
        for name in _NAMED.findall(path.read_text(encoding="utf-8"))
    }
    assert len(named) >= 10
    assert sorted(f"{name} in {file}" for name, file in named if not (ROOT / name).exists()) == []


# ---- docs/coverage/upstream.md maps upstream tests and reports to cases

PAGE = (ROOT / "docs" / "coverage" / "upstream.md").read_text(encoding="utf-8")


def unknown(text: str, names: set[str]) -> list[str]:
    """A sentence for each row of a table that names a case which does not exist, or names none and says not why."""
    out = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 4 or set(cells[0]) <= {"-", " ", ":"} or cells[1] == "cases":
            continue
        globs = re.findall(r"`([^`]+)`", cells[1])
        out += [f"{cells[0]}: no case matches {glob}" for glob in globs if not any(fnmatch(n, glob) for n in names)]
        if not globs and not cells[2]:
            out.append(f"{cells[0]}: neither a case nor a reason")
    return out


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every case that a run of all devices collects, as `rule/id`."""
    return {key.partition("/")[2] for key in collected(tmp_path_factory.mktemp("manifest"))}


def test_every_case_named_exists(names: set[str]) -> None:
    assert unknown(PAGE, names) == []


def test_a_row_that_names_nothing_is_reported() -> None:
    head = "| upstream | cases | note | mutant |\n|---|---|---|---|\n"
    text = f"{head}| test_a | `promote/gone-*` | | |\n| test_b | | | |\n| test_c | | CUDA | |\n"
    assert unknown(text, {"promote/cat-fp32-bf16-cpu"}) == [
        "test_a: no case matches promote/gone-*",
        "test_b: neither a case nor a reason",
    ]


def test_no_word_of_one_rule_or_device_is_in_a_case_of_another(names: set[str]) -> None:
    """So that `pytest suites -k WORD` selects that rule, dtype or device and nothing else, but for names of torch."""
    tokens = [*(device.token for device in known().values()), *COMPILERS]
    found = []
    for name in names:
        rule, id_ = name.split("/")
        words = () if id_.startswith("surface-") else RULES
        found += [f"{name} holds {other}" for other in words if other != rule and other in id_.lower()]
        own = id_.split("-")[0].lower()
        found += [f"{name} holds {token}" for token in (*FLOATING, *tokens) if token in own]
    assert found == []


_BLOCK = re.compile(r"^```python(?P<how> subprocess)?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
FINDINGS = {one.id: one for one in findings.load()}


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Autocast as a new process has it, before and after."""
    reset({})
    yield
    reset({})


def check(block: re.Match[str], name: str) -> None:
    """Run a block, in this process or in one of its own. Raises AssertionError where it ends with an error."""
    if block["how"]:
        done = subprocess.run([sys.executable, "-c", block["code"]], capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, f"{name} does not happen:\n{done.stderr}"
        return
    with warnings.catch_warnings():
        # A warning of torch is no part of a finding.
        warnings.simplefilter("ignore")
        try:
            exec(compile(block["code"], f"{name}.md", "exec"), {"__name__": __name__})
        except Exception as error:
            raise AssertionError(f"{name} does not happen: {type(error).__name__}: {error}") from error


def _runs(name: str) -> object:
    """A finding as a parameter; one that needs a process of its own runs each night alone."""
    apart = any(block["how"] for block in _BLOCK.finditer(FINDINGS[name].body))
    return pytest.param(name, marks=[pytest.mark.nightly] * apart)


@pytest.mark.parametrize("name", [_runs(name) for name in FINDINGS])
def test_it_happens_in_the_versions_it_names(name: str) -> None:
    blocks = list(_BLOCK.finditer(FINDINGS[name].body))
    assert blocks, f"{name} has no block to run"
    named = SpecifierSet(FINDINGS[name].torch).contains(torch.__version__, prereleases=True)
    with nullcontext() if named else pytest.raises(AssertionError, match="does not happen"):
        for block in blocks:
            check(block, name)


WHOLE = """---
sure: certain
area: cache
versions: torch >=2.11
severity: high
upstream: https://github.com/pytorch/pytorch/issues/1
---

# A title

Text.
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("# A title", "A title", "a line '# title'"),
        ("area: cache\n", "", "has sure, area, versions, severity, upstream, in this order"),
        ("certain", "surely", "sure is 'surely'; it is one of certain, likely, open"),
        (">=2.11", "2.13.0 and later", "versions begins with torch and a range such as >=2.11,<2.14"),
        ("https://github.com/pytorch/pytorch/issues/1", "unreported", "upstream is the link of"),
    ],
)
def test_front_matter_that_is_not_whole_is_refused(old: str, new: str, says: str) -> None:
    assert findings.parse(Path("x.md"), WHOLE).report.endswith("/1")
    with pytest.raises(ValueError, match=re.escape(says)):
        findings.parse(Path("x.md"), WHOLE.replace(old, new))


@pytest.mark.parametrize("how", ["", " subprocess"])
def test_one_that_was_mended_is_reported(how: str) -> None:
    page = f"```python{how}\nimport torch\nassert torch.ones(1).dtype is torch.float16\n```\n"
    block = _BLOCK.search(page)
    assert block is not None
    with pytest.raises(AssertionError, match="mended does not happen"):
        check(block, "mended")
