"""Read the findings of docs/findings/ and write their index. `python -m scripts.findings` writes it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "findings"
INDEX = FOLDER / "README.md"
OUTSIDE = "outside autocast"
"""The area of findings that are about other parts of PyTorch. They have a reproduction and nothing else."""

SURE = ("certain", "likely", "open")
SEVERITY = {
    "high": "results, gradients, steps or state are wrong without a message, or the process ends",
    "medium": "ops run in another precision than promised, or ordinary code raises",
    "low": "a message misleads, the call is rare, or PyTorch promises nothing",
}
_FIELDS = ("sure", "area", "versions", "severity", "upstream")
_VERSIONS = re.compile(r"torch (?P<range>[<>=!.,\d]+)(; .+)?")
_FILE = re.compile(r"---\n(?P<front>.*?)\n---\n\n# (?P<title>[^\n]+)\n\n(?P<body>.*)", re.DOTALL)
_REPORT = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+")
_SEARCH = re.compile(r'none found on \d{4}-\d\d-\d\d by "[^"]+"')
_HEAD = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Finding:
    """A finding as its file has it."""

    path: Path
    title: str
    sure: str
    area: str
    versions: str
    severity: str
    upstream: str
    body: str

    @property
    def id(self) -> str:
        """The name of the file, which is the id of the known deviation, too."""
        return self.path.stem

    @property
    def torch(self) -> str:
        """The range of torch versions in which it happens, as in pip's requirements."""
        match = _VERSIONS.fullmatch(self.versions)
        assert match is not None, "parse checks it"
        return match["range"]

    @property
    def report(self) -> str:
        """The link of the issue or pull request, or nothing."""
        return self.upstream if _REPORT.fullmatch(self.upstream) else ""


def parse(path: Path, text: str) -> Finding:
    """Read a finding. Raises ValueError that says what is missing or wrong in its front matter."""
    match = _FILE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{path.name}: expected front matter between lines of ---, then a line '# title', then the text"
        )
    lines = [line.partition(": ") for line in match["front"].splitlines()]
    if tuple(key for key, _, _ in lines) != _FIELDS:
        raise ValueError(f"{path.name}: the front matter has {', '.join(_FIELDS)}, in this order")
    values = {key: value.strip() for key, _, value in lines}
    if empty := [key for key, value in values.items() if not value]:
        raise ValueError(f"{path.name}: {', '.join(empty)} is empty")
    for key, known in (("sure", SURE), ("severity", tuple(SEVERITY))):
        if values[key] not in known:
            raise ValueError(f"{path.name}: {key} is {values[key]!r}; it is one of {', '.join(known)}")
    if not _VERSIONS.fullmatch(values["versions"]):
        raise ValueError(f"{path.name}: versions begins with torch and a range such as >=2.11,<2.14")
    if not _REPORT.fullmatch(values["upstream"]) and not _SEARCH.fullmatch(values["upstream"]):
        raise ValueError(
            f'{path.name}: upstream is the link of an issue or pull request, or: none found on DATE by "WORDS"'
        )
    return Finding(path, match["title"], body=match["body"], **values)


def load() -> list[Finding]:
    """Read every finding, by severity, area and name."""
    paths = [path for path in FOLDER.rglob("*.md") if path.name != INDEX.name]
    found = [parse(path, path.read_text(encoding="utf-8")) for path in paths]
    return sorted(found, key=lambda one: (list(SEVERITY).index(one.severity), one.area, one.id))


def index(findings: Iterable[Finding]) -> str:
    """Write the index: a table for each severity, and one for TorchScript."""
    findings = list(findings)
    current = [one for one in findings if one.path.parent == FOLDER]
    archived = [one for one in findings if one.path.parent != FOLDER]
    parts = [_HEAD]
    for severity, meaning in SEVERITY.items():
        chosen = [one for one in current if one.severity == severity]
        parts.append(
            f"## {severity.capitalize()}: {len(chosen)}\n\nSeverity {severity}: {meaning}.\n\n{_table(chosen)}"
        )
    parts.append(
        f"## TorchScript: {len(archived)}\n\n"
        "TorchScript is deprecated since torch 2.11 in favour of `torch.export` "
        "([release notes](https://pytorch.org/blog/pytorch-2-11-release-blog/)), so a fix is unlikely.\n\n"
        f"{_table(archived, severity=True)}"
    )
    return "\n".join(parts)


def _table(findings: Iterable[Finding], severity: bool = False) -> str:
    rows = [f"| finding | {'severity' if severity else 'area'} | sure | torch | reported |", "|---|---|---|---|---|"]
    for one in findings:
        link = f"[{one.title}]({one.path.relative_to(FOLDER).as_posix()})"
        report = f"[{'#'.join(one.report.split('/')[-3::2])}]({one.report})" if one.report else ""
        rows.append(f"| {link} | {one.severity if severity else one.area} | {one.sure} | {one.torch} | {report} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    INDEX.write_text(index(load()), encoding="utf-8")
