"""Try ampcheck on backends that exist, as their authors would: `python -m scripts.backends [NAME …] --into FOLDER`.

Each recipe of recipes.toml gets a folder with a virtual environment, is checked by `ampcheck onboard` and judged by
`ampcheck run --smoke`. What came out goes to facts/NAME.json, and all facts to docs/backends.md, which is written alone
where no --into is given. Ends with 1 where a backend is red for something that its facts did not have.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from tabulate import tabulate

from ampcheck.errors import UsageError, unknown
from ampcheck.runner.record import RED, counted, first_line, grouped, read
from ampcheck.runner.summarize import markdown

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "backends.md"
TORCH = "torch==2.13.*"
RECIPES = HERE / "recipes.toml"

_HEAD = (HERE / "head.md").read_text(encoding="utf-8")
_READ = tomllib.loads((HERE / "programs.toml").read_text(encoding="utf-8"))["read"]


class Recipe(msgspec.Struct, forbid_unknown_fields=True):
    """How a backend is installed; recipes.toml says what each field means."""

    install: list[str] = []
    package: str = ""
    module: str = ""
    device: str = ""
    checkout: str = ""
    commit: str = ""
    build: str = ""
    env: dict[str, str] = {}
    needs: str = ""


class Facts(msgspec.Struct, omit_defaults=True):
    """What came out. `refused`: why it does not load; `promise`: what `_READ` prints; `causes`: cases, example, why."""

    versions: dict[str, str]
    date: str
    commands: list[str]
    refused: str = ""
    promise: dict[str, Any] = {}
    preflight: list[str] = []
    counts: dict[str, int] = {}
    causes: list[tuple[int, str, str]] = []
    seconds: int = 0


class Place:
    """The folder of a recipe: its environment, and the commands that run there."""

    def __init__(self, name: str, recipe: Recipe, folder: Path, source: str) -> None:
        self.name, self.recipe, self.folder = name, recipe, folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.scripts = folder / "venv" / "bin"
        paths = [str(HERE), str(folder)]
        self.env = {**os.environ, **recipe.env, "PATH": f"{self.scripts}{os.pathsep}{os.environ['PATH']}"}
        if recipe.checkout:
            paths.append(source or str(folder / "source"))
        if recipe.build:
            paths.append(str(folder / "built" / "site"))
            self.env["LD_LIBRARY_PATH"] = str(folder / "built")
        self.env["PYTHONPATH"] = os.pathsep.join(paths)
        self.source = source

    def run(self, *command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder. Raises UsageError with its last line where it fails and `check` is set."""
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        if check and done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "nothing printed").splitlines()[-1]
            raise UsageError(f"{self.name}: {Path(command[0]).name} {' '.join(map(str, command[1:4]))}…: {last}")
        return done

    def install(self) -> None:
        """Make the environment with torch, this ampcheck and the backend."""
        if not (self.scripts / "pip").exists():
            self.run(sys.executable, "-m", "venv", "venv")
        for packages in filter(None, ([TORCH], [str(ROOT)], self.recipe.install)):
            self.run(self.scripts / "pip", "install", "--quiet", TORCH, *packages)
        if self.recipe.checkout and not self.source and not (self.folder / "source").exists():
            self.run("git", "clone", "--quiet", self.recipe.checkout, "source")
            self.run("git", "-C", "source", "checkout", "--quiet", self.recipe.commit)
        if self.recipe.build:
            self.run(HERE / self.recipe.build, self.folder / "built")

    def versions(self) -> dict[str, str]:
        """Return the versions of torch and of what the recipe installs."""
        names = [requirement.partition("=")[0] for requirement in self.recipe.install]
        if self.recipe.build:
            names.append(self.name)
        code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
        found: dict[str, str] = json.loads(self.run(self.scripts / "python", "-c", code, "torch", *names).stdout)
        return {**found, **({self.name: self.recipe.commit[:9]} if self.recipe.checkout else {})}

    def judge(self) -> Facts:
        """Check the backend and run the smoke cases on it."""
        date = f"{datetime.now(UTC):%Y-%m-%d}"
        facts = Facts(self.versions(), date, [])
        device, module = self.recipe.device, self.recipe.module
        if not module:
            for old in self.folder.glob("*_ampcheck.py"):
                old.unlink()
            onboard = ["ampcheck", "onboard", "--package", self.recipe.package]
        else:
            onboard = ["ampcheck", "onboard", device, "--device-module", module]
        settings = [f"{key}={value}" for key, value in self.recipe.env.items()]
        facts.commands.append(" ".join([*settings, *onboard]))
        done = self.run(*onboard, check=False)
        (self.folder / "onboard.txt").write_text(done.stdout + done.stderr)
        if not module:
            module = next((path.stem for path in self.folder.glob("*_ampcheck.py")), "")
            device = module.removesuffix("_ampcheck")
        if done.returncode == 2:
            facts.refused = re.sub(r"/\S*/site-packages/", "", done.stderr.strip() or done.stdout.strip())
            return facts
        facts.promise = json.loads(
            self.run(self.scripts / "python", "-c", _READ, module, device).stdout.splitlines()[-1]
        )
        run = ["ampcheck", "run", "--smoke", "--device", device, "--device-module", module]
        facts.commands.append(" ".join([*settings, *run]))
        (self.folder / "run.jsonl").unlink(missing_ok=True)
        done = self.run(*run, "--run-file", "run.jsonl", check=False)
        (self.folder / "run.txt").write_text(done.stdout + done.stderr)
        if done.returncode == 2:
            raise UsageError(f"{self.name}: {done.stderr.strip().splitlines()[-1]}")
        found = read(self.folder / "run.jsonl")
        counts = found.counts()
        facts.counts = {"cases": counts.total(), "red": sum(counts[status] for status in RED), **counts}
        facts.preflight = [re.sub(r" \(/\S+", " (", said) for said in found.header["preflight"]]
        for results, example in ((cause.results, cause.example) for cause in grouped(found.results.values())):
            facts.causes.append((len(results), example.key, f"{example.status}: {first_line(example.message)}"))
        facts.seconds = round((found.footer or {"seconds": 0})["seconds"])
        return facts


def page(recipes: dict[str, Recipe], facts: dict[str, Facts]) -> str:
    """Return the page of all facts."""
    rows, parts = [], []
    for name in sorted(facts, key=str.lower):
        fact, recipe = facts[name], recipes[name]
        promise, counts = fact.promise, fact.counts
        version = ", ".join(f"{of} {number}" for of, number in fact.versions.items())
        commands = "".join(f"    {command}\n" for command in fact.commands)
        needs = f" It needs {recipe.needs}." if recipe.needs else ""
        part = f"\n## {name}\n\n{version}; {fact.date}.{needs}\n\n{commands}\n"
        if fact.refused:
            rows.append([name, "does not load"])
            parts.append(f"{part}It does not load: {markdown(fact.refused)}\n")
            continue
        lacks = promise["lacks"]
        rows.append(
            [name, ", ".join(promise["dtypes"]), promise["promised"], promise["kernels"], len(lacks)]
            + [counts.get(of, 0) for of in ("cases", "pass", "red", "deviation", "unsupported")]
        )
        if lacks:
            part += f"No autocast kernel for {', '.join(f'`{op}`' for op in lacks)}.\n\n"
        part += "".join(f"- {markdown(said)}\n" for said in fact.preflight)
        part += "".join(
            f"- {counted(cases, 'case')}, such as `{key}`: {markdown(text)}\n" for cases, key, text in fact.causes
        )
        parts.append(part)
    headers = ["backend", "regions", "promised", "kernels", "lacks", "cases", "pass", "red", "deviation", "unsupported"]
    said = "`promised`: overloads with a policy in the device module; `kernels`: overloads with an autocast kernel.\n"
    return f"{_HEAD}{tabulate(rows, headers, tablefmt='github')}\n\n{said}{''.join(parts)}"


def red(facts: Facts) -> set[str]:
    """Return what of a backend is red, without the figures that differ from machine to machine."""
    steps = {said.partition(": raised")[0] for said in facts.preflight if said.startswith("failed")}
    return steps | {key for _, key, _ in facts.causes} | ({"it does not load"} if facts.refused else set())


def main() -> int:
    """Try the named recipes, or all, and write the facts and the page. Returns 1 where something new is red."""
    parser = argparse.ArgumentParser(prog="python -m scripts.backends", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="make the environments in this folder")
    parser.add_argument("--source", default="", metavar="PATH", help="a checkout of the one NAME that needs one")
    args = parser.parse_args()
    recipes = msgspec.toml.decode(RECIPES.read_bytes(), type=dict[str, Recipe])
    for name in args.names:
        if name not in recipes:
            raise unknown("backend", name, recipes)
    new = False
    for name in (args.names or recipes) if args.into else ():
        place = Place(name, recipes[name], args.into.resolve() / name, args.source)
        print(f"{name}: installs", flush=True)
        place.install()
        print(f"{name}: runs", flush=True)
        found = place.judge()
        kept = HERE / "facts" / f"{name}.json"
        before = red(msgspec.json.decode(kept.read_bytes(), type=Facts)) if kept.exists() else set()
        kept.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
        said = f"{found.counts['red']} of {found.counts['cases']} cases are red" if found.counts else "does not load"
        print(f"{name}: {said}", *(f"new: {what}" for what in sorted(red(found) - before)), sep="\n", flush=True)
        new |= bool(red(found) - before)
    files = sorted((HERE / "facts").glob("*.json"))
    facts = {path.stem: msgspec.json.decode(path.read_bytes(), type=Facts) for path in files}
    PAGE.write_text(page(recipes, facts), encoding="utf-8")
    return int(new)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UsageError as wrong:
        print(f"scripts.backends: {wrong}", file=sys.stderr)
        sys.exit(2)
