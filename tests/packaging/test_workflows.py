"""The scripts of the workflows' steps, run as GitHub does. What a YAML file says otherwise is read by actionlint."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from ampcheck.cli import main
from ampcheck.runner.record import read
from ampcheck.spec.case import Shard
from tests.cli_support import LIMIT, MODULE, PROGRAMS, ROOT, jobs, python, workflow

NOTE = '#!/bin/bash\nprintf "%s\\n" "$(basename "$0")" "$@" >> "$KEPT/notes"\n'
"""A program that notes how it was called, a word a line."""
GH = PROGRAMS["workflows-gh"]
"""In place of GitHub's program: no issue is open, and of three runs the newest has no history."""
AMPCHECK = f'#!/bin/sh\nexec "{sys.executable}" -m ampcheck "$@"\n'
NOTHING = "#!/bin/sh\n"


class Runner:
    """A folder that steps run in, with some programs in front of those of this machine."""

    def __init__(self, folder: Path, **programs: str) -> None:
        self.folder, self.kept = folder, folder / "kept"
        self.kept.mkdir()
        (folder / "bin").mkdir()
        for name, text in programs.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{self.kept}",
            "KEPT": str(self.kept),
            "GITHUB_OUTPUT": str(self.kept / "output"),
            "GITHUB_STEP_SUMMARY": str(self.kept / "summary"),
            "OMP_NUM_THREADS": "1",
            "GH_REPO": "ampcheck/ampcheck",
            "GITHUB_REPOSITORY": "ampcheck/ampcheck",
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_RUN_ID": "19",
        }

    def step(self, script: str, folder: Path | None = None, *, codes: tuple[int, ...] = (0,), **env: str) -> None:
        """Run the script of a step, which must end with one of `codes`."""
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=folder or self.folder,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode in codes, done.stdout + done.stderr

    def words(self, script: str, **env: str) -> list[str]:
        """Run the script of a step, and return how the programs that note it were called."""
        self.step(script, **env)
        return (self.kept / "notes").read_text().splitlines()

    def said(self, name: str) -> str:
        """Return what was kept under a name."""
        return (self.kept / name).read_text()


# ---- conformance.yml, which the repository of a backend calls


(PLAN,), (INSTALL, RUN), (_, REPORT) = jobs("conformance").values()
ACTION = re.compile(r"- uses: (?:docker://)?(\S+)@(\S+)(.*)\n(?: *#.*\n)?(?:        with: (.*))?")
JOB = re.compile(r"^  ([\w-]+):\n((?:    .*\n|  #.*\n)+)", re.MULTILINE)


@pytest.mark.parametrize("name", ["check", "conformance", "nightly", "publish"])
def test_actions_are_pinned_and_jobs_end(name: str) -> None:
    permissions, _, rest = workflow(name).partition("\njobs:\n")
    assert re.search(r"^permissions: \{contents: read\}$", permissions, re.MULTILINE)
    found = JOB.findall(rest)
    assert [job for job, _ in found] == list(jobs(name))
    assert [job for job, body in found if not re.search(r"^    timeout-minutes: \d+$", body, re.MULTILINE)] == []
    installing = [job for job, body in found if re.search(r"pip install|\bmake ", body)]
    assert [job for job in installing if "PIP_EXTRA_INDEX_URL" not in permissions + dict(found)[job]] == []
    steps = ACTION.findall(rest.replace("        uses: ", "      - uses: "))
    assert len(steps) == rest.count("uses: ")
    for action, commit, version, given in steps:
        assert re.fullmatch(r"[0-9a-f]{40}|sha256:[0-9a-f]{64}", commit), action
        assert re.match(r" # v\d+\.\d+\.\d+$", version) or ":1.7.7" in action
        assert "persist-credentials: false" in given or action != "actions/checkout"
        assert "cache: pip" in given or action != "actions/setup-python" or name == "publish"
        assert 'ref: "${{ job.workflow_sha }}"' in given or "repository:" not in given


@pytest.fixture
def noting(tmp_path: Path) -> Runner:
    """A runner whose ampcheck and pip note how they are called."""
    return Runner(tmp_path, ampcheck=NOTE, pip=NOTE)


@pytest.mark.parametrize("count", [1, 8])
def test_the_plan_names_every_shard(count: int, noting: Runner) -> None:
    noting.step(PLAN, COUNT=str(count))
    name, _, value = noting.said("output").strip().partition("=")
    assert name == "shards"
    assert [Shard.parse(text) for text in json.loads(value)] == [Shard(n, count) for n in range(1, count + 1)]


def test_the_packages_of_the_input_are_installed(noting: Runner) -> None:
    words = noting.words(INSTALL, INSTALL="torch-mydevice>=2 .")
    assert words == ["pip", "install", "./.ampcheck", "torch-mydevice>=2", "."]


OPTIONS = ["--device", "one", "--device", "two", "--deviations", "a.toml", "--deviations", "b.toml"]
OPTIONS += ["--device-module", "mydevice_ampcheck", "--baseline", "my baseline.txt", "--manifest", "manifest.txt"]
INPUTS = {
    "DEVICES": "one two",
    "MODULE": "mydevice_ampcheck",
    "DEVIATIONS": "a.toml b.toml",
    "BASELINE": "my baseline.txt",
    "MANIFEST": "manifest.txt",
}


@pytest.mark.parametrize(("inputs", "options"), [(INPUTS, OPTIONS), (dict.fromkeys(INPUTS, ""), [])])
def test_the_run_takes_every_input_and_needs_none(inputs: dict[str, str], options: list[str], noting: Runner) -> None:
    words = noting.words(RUN, SHARD="2/8", **inputs)
    assert words == ["ampcheck", "run", "--shard", "2/8", "--run-file", "reports/runs/2-of-8.jsonl", *options]


def test_a_red_run_ends_its_step(noting: Runner) -> None:
    noting.step(f"ampcheck() {{ return 1; }}\n{RUN}", codes=(1,), SHARD="1/1", **dict.fromkeys(INPUTS, ""))


def test_summary_and_badge(noting: Runner) -> None:
    site = noting.folder / "reports" / "site"
    site.mkdir(parents=True)
    (site / "summary.md").write_text("## ampcheck\n")
    (site / "badge.json").write_text('{\n "label": "ampcheck"\n}\n')
    assert noting.words(REPORT) == ["ampcheck", "report"]
    assert noting.said("summary") == "## ampcheck\n"
    assert noting.said("output") == 'badge<<END\n{\n "label": "ampcheck"\n}\nEND\n'


# ---- publish.yml, and what needs hardware


@pytest.mark.parametrize(("tag", "code"), [("v0.1.0", 0), ("v0.2.0", 1)])
def test_the_tag_names_the_version(tag: str, code: int, tmp_path: Path) -> None:
    (script,) = (script for script in jobs("publish")["build"] if "TAG" in script)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "ampcheck-0.1.0.tar.gz").touch()
    Runner(tmp_path).step(script, codes=(code,), TAG=tag)


def test_commands_of_hardware_are_understood(noting: Runner) -> None:
    """The command line takes their options, for whose cases there is no machine here."""
    scripts = [script for job in ("hardware", "virtual-npu") for script in jobs("nightly")[job]]
    for script in (script for script in scripts if script.startswith("ampcheck")):
        words = noting.words(script, DEVICE="cuda")
        (noting.kept / "notes").unlink()
        main._parser().parse_args(words[1:])
    with pytest.raises(SystemExit):
        main._parser().parse_args(["bench", "--no-such-option"])


def test_the_targets_of_make_exist() -> None:
    for (script,) in (jobs("check")["static"], jobs("check")["tests"]):
        done = subprocess.run([*script.split(), "-n"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert "lint-imports" in done.stdout
        assert "mypy" in done.stdout


# ---- nightly.yml: three nights of two shards on two devices, the third with a fault

NIGHT = jobs("nightly")
FAULTY = MODULE.replace('autocast("bf16", **kw)', 'autocast("bf16" if os.environ["FAULT"] else dtype, **kw)')
SITE = (ROOT / "scripts" / "nightly_site").read_text(encoding="utf-8")
SELECTION = "--device cpu --device swapped --device-module faulty --suite eager --rule promote --op cat"


@pytest.fixture
def nightly(tmp_path: Path) -> Runner:
    """A runner that installs nothing and says of each night what night it is."""
    runner = Runner(tmp_path, gh=GH, date='#!/bin/sh\necho "$NIGHT"\n', ampcheck=AMPCHECK, pip=NOTHING)
    runner.env |= {"INDEX": "", "NIGHTS": "2"}
    (runner.kept / "faulty.py").write_text(FAULTY)
    return runner


def night(runner: Runner, date: str, fault: str) -> Path:
    """Run the suites and the report of a night; return the folder of its report."""
    install, run = NIGHT["suites"]
    (runner.kept / "summary").write_text("")
    report = runner.folder / date
    (report / "scripts").mkdir(parents=True)
    for name in ("nightly_site", "nightly_issue"):
        (report / "scripts" / name).symlink_to(ROOT / "scripts" / name)
    for number in (1, 2):
        folder = runner.folder / f"{date}-{number}"
        folder.mkdir()
        given = {"TORCH": "2.13", "SHARD": f"{number}/2", "SELECTION": SELECTION, "NIGHT": date, "FAULT": fault}
        runner.step(install, folder, **given)
        runner.step(run, folder, codes=(0, 1), **given)
        (file,) = (folder / "reports/runs").glob("*.jsonl")
        header, rest = file.read_text(encoding="utf-8").split("\n", 1)
        assert json.loads(header)["nightly"]
        # All three nights are made within minutes.
        header = re.sub(r'"started":"[\d-]+T', f'"started":"{date}T', header)
        tonight = report / f"tonight/run-2.13-{number}"
        tonight.mkdir(parents=True)
        (tonight / file.name).write_text(f"{header}\n{rest}", encoding="utf-8")
    for script in NIGHT["report"][1:]:
        runner.step(script, report)
    shutil.rmtree(runner.kept / "history", ignore_errors=True)
    (report / "history").rename(runner.kept / "history")
    return report


def test_the_plan_has_the_nightly_build_where_an_index_is_named(nightly: Runner) -> None:
    for index, more in (("", []), ("https://example.org/nightly", ["nightly"])):
        nightly.step(NIGHT["plan"][0], INDEX=index)
        planned = json.loads(nightly.said("output").splitlines()[-1].partition("=")[2])
        assert planned == ["2.11", "2.12", "2.13", "2.14", "2.15", "newest", *more]


@pytest.mark.nightly
def test_a_regression_is_named_with_its_night(nightly: Runner) -> None:
    for date in ("2026-11-01", "2026-11-02"):
        report = night(nightly, date, "")
        assert json.loads((report / "site/2.13/changes.json").read_text()).get("regressed", []) == []
        assert "issue" not in nightly.said("gh")
    report = night(nightly, "2026-11-03", "1")

    changes = json.loads((report / "site/2.13/changes.json").read_text())
    assert {change["device"] for change in changes["regressed"]} == {"swapped"}
    assert "2026-11-02" in changes["a"]
    assert "2026-11-03" in changes["b"]
    assert nightly.said("summary").startswith("# torch 2.13\n")
    assert changes["regressed"][0]["key"] in nightly.said("summary")
    issues = [line for line in nightly.said("gh").splitlines() if line.startswith("issue create")]
    assert issues == ["issue create --title Regressed at night: torch 2.13 --body-file body.md"]
    assert nightly.said("body") == (report / "site/2.13/summary.md").read_text()
    kept = sorted(file.name for file in (nightly.kept / "history/2.13/runs").iterdir())
    assert kept == [f"2026-11-0{date}-{shard}-of-2.jsonl" for date in (2, 3) for shard in (1, 2)]
    assert 'href="2.13/index.html"' in (report / "site/index.html").read_text()


HISTORY = next(script for script in NIGHT["report"] if "gh run download" in script)


def test_a_night_without_its_artifact_loses_nothing(nightly: Runner) -> None:
    (nightly.kept / "history/2.13/runs").mkdir(parents=True)
    (nightly.kept / "history/2.13/runs/2026-11-01.jsonl").touch()
    nightly.step(HISTORY)
    assert [line.split()[:3] for line in nightly.said("gh").splitlines()[3:]] == [["run", "download", "17"]]
    assert (nightly.folder / "history/2.13/runs/2026-11-01.jsonl").exists()


def test_the_first_night_has_no_history(nightly: Runner) -> None:
    nightly.step(HISTORY)
    assert "download" not in nightly.said("gh")
    assert not (nightly.folder / "history").exists()


def test_a_download_that_fails_leaves_no_shorter_history(nightly: Runner) -> None:
    """The step before the upload fails, and there is nothing to upload in place of the whole."""
    (nightly.kept / "history").mkdir()
    nightly.step(HISTORY, codes=(1,), WHOLE="none")
    assert not (nightly.folder / "history").exists()


def test_a_night_without_run_files_shows_the_nights_before(nightly: Runner) -> None:
    (nightly.folder / "history/2.13/runs").mkdir(parents=True)
    (nightly.folder / "history/2.13/bench").mkdir()
    nightly.step("ampcheck() { mkdir -p site/2.13; echo '## ampcheck' > site/2.13/summary.md; }\n" + SITE)
    assert "2.13/index.html" in (nightly.folder / "site/index.html").read_text()
    assert [path.name for path in (nightly.folder / "history").iterdir()] == ["2.13"]


def issue(runner: Runner, summary: str, **env: str) -> None:
    """Report a regression of torch 2.1 whose summary is a text."""
    site = runner.folder / "site" / "2.1"
    site.mkdir(parents=True)
    (site / "changes.json").write_text('{"regressed": [{}]}')
    (site / "summary.md").write_text(summary)
    runner.step(str(ROOT / "scripts" / "nightly_issue"), **env)


def test_a_long_body_ends_with_where_the_rest_is(nightly: Runner) -> None:
    issue(nightly, "".join(f"- regressed ü {number}\n" for number in range(9000)))
    body = nightly.said("body")
    assert 60_000 < len(body) < 65_536
    assert body.startswith("- regressed ü 0\n")
    assert body.endswith("\n\nThe rest is in the summary of https://github.com/ampcheck/ampcheck/actions/runs/19\n")


@pytest.mark.parametrize(("title", "says"), [("torch 2.1", "issue comment 5"), ("torch 2.13", "issue create")])
def test_only_the_issue_of_the_same_title_is_commented_on(title: str, says: str, nightly: Runner) -> None:
    issue(nightly, "## ampcheck\n", ISSUES=json.dumps([{"number": 5, "title": f"Regressed at night: {title}"}]))
    assert nightly.said("gh").splitlines()[-1].startswith(says)


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_kind_of_data_file_ships() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    listed = subprocess.run(["git", "ls-files", "ampcheck"], cwd=ROOT, check=True, capture_output=True, text=True)
    kept = listed.stdout.split()
    data = [Path(name) for name in kept if not name.endswith(".py")]
    assert data
    assert [p for p in data if not any(p.match(pattern) for pattern in patterns)] == []


# ---- the built wheel, in an environment that has nothing else of ampcheck


@dataclass(frozen=True)
class Installed:
    """A virtual environment with what ampcheck depends on, and a folder to work in."""

    programs: Path
    wheels: Path
    folder: Path

    def run(self, command: str, code: int | None = None) -> subprocess.CompletedProcess[str]:
        """A line of a shell, as a newcomer types it; pip finds the built wheel and no index."""
        env = {
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }
        how = {"shell": True, "capture_output": True, "text": True, "timeout": LIMIT, "check": False}
        done = subprocess.run(command, cwd=self.folder, env=env, **how)
        assert code in (None, done.returncode), command + done.stdout + done.stderr
        return done


def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A copy of the files that git has, so that nothing is left in the checkout, and their names."""
    source = tmp_path_factory.mktemp("source")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in names:
        if name and (ROOT / name).is_file() and not name.startswith("reports/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    return source, {name for name in names if (source / name).is_file()}


def build(tmp_path_factory: pytest.TempPathFactory, **env: str) -> Path:
    """The folder of a wheel built from a copy."""
    (source, _), wheels = copied(tmp_path_factory), tmp_path_factory.mktemp("wheels")
    options = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w"]
    command = [sys.executable, "-m", "pip", *options, str(wheels)]
    subprocess.run([*command, str(source)], env={**os.environ, **env}, check=True, capture_output=True, timeout=LIMIT)
    return wheels


def test_the_sdist_has_all_but_reports(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests, docs and what they read: a distribution builds and tests a package from it."""
    source, names = copied(tmp_path_factory)
    code = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    python("-c", code, folder=source)
    with tarfile.open(next((source / "dist").glob("ampcheck-*.tar.gz"))) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
        information = archive.extractfile(next(name for name in archive.getnames() if name.endswith("/PKG-INFO")))
        fields = information.read().decode().partition("\n\n")[0]
    assert sorted(name for name in names - held if not name.startswith((".ci/", ".gitignore"))) == []
    for field in ("Author: The ampcheck authors", "Project-URL: Issues, https", "Keywords: pytorch,autocast"):
        assert f"\n{field}" in fields


def environment(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment without ampcheck. What it depends on is linked from this one; nothing is downloaded."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place / "venv", symlinks=True)
    inside = {"base": str(place / "venv"), "platbase": str(place / "venv")}
    links = place / "links"
    links.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "ampcheck" not in entry.name and entry.suffix != ".pth":
            (links / entry.name).symlink_to(entry)
    (Path(sysconfig.get_path("purelib", vars=inside)) / "links.pth").write_text(f"{links}\n")
    programs = Path(sysconfig.get_path("scripts", vars=inside))
    for name, module in (("pip", "pip"), ("pytest", "pytest")):  # `python -P`: the current folder is not on its path
        (programs / name).write_text(f'#!/bin/sh\nexec "{programs}/python" -P -m {module} "$@"\n')
        (programs / name).chmod(0o755)
    folder = tmp_path_factory.mktemp("empty")
    return Installed(programs, wheels, folder)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The environment after the first command of the page for backends."""
    empty = environment(build(tmp_path_factory), tmp_path_factory)
    (first, *_) = commands()
    assert first == "pip install ampcheck"
    assert empty.run("ampcheck --help").returncode != 0
    empty.run(first, code=0)
    where = empty.run("python -P -c 'import ampcheck; print(ampcheck.__file__)'").stdout
    assert where.startswith(str(empty.programs.parent))
    return empty


OPERATORS = 'python -P -W error -c "import ampcheck.torchscript as t; print(t.OPERATORS)"'
EMULATED = "ampcheck run --device emulated:cuda --op mm --suite eager --smoke --run-file emulated.jsonl"


@pytest.mark.nightly
def test_a_wheel_built_with_a_compiler_has_its_libraries(installed: Installed) -> None:
    assert installed.run(OPERATORS).stdout.startswith("the library of operators built for torch ")
    installed.run(EMULATED, code=0)


@pytest.mark.nightly
def test_without_a_compiler_the_operators_are_in_python(tmp_path_factory: pytest.TempPathFactory) -> None:
    nowhere = str(tmp_path_factory.mktemp("nowhere"))
    absent = {"PATH": nowhere, "CC": f"{nowhere}/gcc", "CXX": f"{nowhere}/g++"}
    installed = environment(build(tmp_path_factory, **absent), tmp_path_factory)
    installed.run("pip install ampcheck", code=0)
    assert installed.run(OPERATORS).stdout.startswith("operators written in Python: no library was built")
    refused = installed.run(EMULATED, code=2)
    assert "install a C++ compiler and torch, then ampcheck again with pip's --no-cache-dir" in refused.stderr
    variables = " ".join(f"{name}={value}" for name, value in absent.items() if name != "PATH")
    programs = f"{installed.programs}:{nowhere}"
    smoke = "ampcheck run --device cpu --smoke --run-file smoke.jsonl"
    installed.run(f"env PATH={programs} {variables} {smoke}", code=0)
    results = read(installed.folder / "smoke.jsonl").results.values()
    assert any(result.suite == "jit" and result.status == "pass" for result in results)


PAGE = (ROOT / "docs" / "your_backend.md").read_text(encoding="utf-8").partition("\n## register_autocast\n")[0]


def blocks(language: str) -> list[str]:
    """The fenced blocks of the page, of a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def commands() -> list[str]:
    """Every command of the page, in its order."""
    return [line for block in blocks("sh") for line in block.splitlines()]


def modules() -> dict[str, str]:
    """The files of the page, by the names in their first lines."""
    found = (re.match(r"# (\w+\.py)\n", block) for block in blocks("python"))
    return {match[1]: match.string for match in found if match}


RED = ("--op linear", "--last-failed")
"""What the page's backend fails. A choice among all rules may be red as well: the backend is a small one."""


@pytest.mark.nightly
def test_every_command_of_the_page_works(installed: Installed) -> None:
    assert set(modules()) == {"mydevice_ampcheck.py", "torch_mydevice.py"}
    (installed.folder / "torch_mydevice.py").write_text(modules()["torch_mydevice.py"])
    for command in commands()[1:]:
        done = installed.run(command)
        if "--package" in command:  # which writes the module that the page shows, but for what it promises
            (installed.folder / "mydevice_ampcheck.py").write_text(modules()["mydevice_ampcheck.py"])
        red = any(part in command for part in RED) and "--baseline" not in command
        codes = (0, 1) if "--smoke" in command or "--shard" in command else (int(red),)
        assert done.returncode in codes, command + done.stdout + done.stderr
    counts = {path.stem: read(path).counts() for path in (installed.folder / "reports" / "runs").glob("*.jsonl")}
    assert counts["linear"]["fail"] > 20
    assert sum(count["pass"] for count in counts.values()) > 200
    shown = "argument 0 of aten::linear was given as fp32 and reached the kernel as fp32; expected fp16"
    assert shown in " ".join(next(block for block in blocks("text")).split())
    linear = read(installed.folder / "reports/runs/linear.jsonl").results["eager/downcast/linear-fp32-fp16-mydevice"]
    assert linear.message.startswith(shown)
    assert (installed.folder / "reports" / "site" / "index.html").exists()
    keys = (installed.folder / "manifest.txt").read_text().split()
    assert "eager/downcast/mm-fp32-fp16-mydevice" in keys


@pytest.mark.nightly
@pytest.mark.parametrize("workers", ["-p no:xdist", "-n1"])
def test_the_suites_run_by_name(workers: str, installed: Installed) -> None:
    names = "ampcheck.suites.eager.test_ops::test_downcast ampcheck.suites.autograd"
    options = f"--device cpu --op mm --run-file by_name{len(workers)}.jsonl"
    installed.run(f"pytest --pyargs {names} {options} {workers}", code=0)
    found = read(installed.folder / f"by_name{len(workers)}.jsonl")
    assert set(found.counts()) == {"pass"}
    assert {result.suite for result in found.results.values()} == {"eager", "autograd"}
    assert "eager/downcast/mm-fp32-bf16-cpu" in found.results
    assert not list(installed.folder.glob(".pytest_cache"))


@pytest.mark.nightly
def test_a_failure_by_name_is_red_and_its_line_repeats_it(installed: Installed) -> None:
    (installed.folder / "dying_device.py").write_text(MODULE)
    device = "--device swapped --device-module dying_device --op mm -k mm-fp32-fp16-swapped --run-file red.jsonl"
    done = installed.run(f"pytest --pyargs ampcheck.suites.eager {device}", code=1)
    (failed,) = (result for result in read(installed.folder / "red.jsonl").results.values() if result.status == "fail")
    assert failed.node == "suites/eager/test_ops.py::test_downcast[mm-fp32-fp16-swapped]"
    done = installed.run(failed.pytest, code=1)
    assert "reached the kernel as bf16; expected fp16" in done.stdout


@pytest.mark.nightly
def test_a_name_that_is_no_suite_is_refused(installed: Installed) -> None:
    done = installed.run("pytest --pyargs ampcheck.suites.nope", code=4)
    assert "ampcheck.suites.nope" in done.stderr


@pytest.mark.nightly
def test_other_runs_of_pytest_are_left_alone(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--device')\n")
    (tmp_path / "test_own.py").write_text("def test_own(request):\n    assert request.config.option.device == 'x'\n")
    done = installed.run(f"pytest {tmp_path} --device x", code=0)
    assert "1 passed" in done.stdout
