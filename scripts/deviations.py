"""Show that each known deviation excuses what it names and no more: `python -m scripts.deviations`.

Cases that deviate are run again and again, each time with one of their deviating results changed where the check sees
it: a value doubled, another dtype, another state, another exception. Each such run must be red. An entry that excuses a
change is too wide; one none of whose results can be changed is named, too.
"""

import argparse
import io
import re
import subprocess
import sys
import time
import tomllib
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field, is_dataclass, replace
from functools import wraps
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import pytest
import torch
from _pytest.runner import runtestprotocol

from ampcheck.checks.scenario import DeviceAmp
from ampcheck.devices.registry import groups
from ampcheck.errors import CheckFailure, HarnessError, Unsupported
from ampcheck.runner.collect import CASE
from ampcheck.runner.deviations import KnownDeviations
from ampcheck.runner.record import RED
from ampcheck.samples.op_database import spread
from ampcheck.spec.torch_dtypes import DTYPES, name_of

ROOT = Path(__file__).parents[1]

ANY_VALUE = ("fused-momentum-after-skipped-step",)
"""Entries of results that are read from uninitialized memory, so that no amount is too large."""

# ---- another result


class AnotherError(Exception):
    """What is raised in place of an exception."""


class AnotherWarning(Warning):
    """What is warned of in place of a warning."""


_RAISED = re.compile(r"(?s)(?P<kind>[A-Za-z_.]*(?:Error|Exception|Unsupported|Warning|Failed))(?P<text>: .*)")

Kind = str
"""What of a result is changed: "value", "dtype", "low", "flag", "text" or "error"."""
KINDS: tuple[Kind, ...] = ("value", "dtype", "low", "flag", "text", "error")


def changed(value: Any, kind: Kind) -> Any:
    """Return a result with every part of one kind changed: numbers doubled, another dtype, another text or class."""
    if isinstance(value, torch.Tensor):
        return _changed_tensor(value, kind)
    if isinstance(value, BaseException):
        return _changed_error(value, kind)
    if isinstance(value, bool):
        return not value if kind == "flag" else value
    if isinstance(value, (int, float)):
        return (value * 2 or 1) if kind == "value" else value
    if isinstance(value, torch.dtype):
        return _changed_dtype(value, kind)
    if isinstance(value, str):
        return _changed_text(value, kind)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(changed(part, kind) for part in value))
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(changed(part, kind) for part in value)
    if isinstance(value, dict):
        return {name: changed(part, kind) for name, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {name: changed(getattr(value, name), kind) for name in _RESULTS if hasattr(value, name)}
        return replace(value, **parts)
    return value


_RESULTS = ("kernels", "leaves", "got", "outputs", "grads", "values", "error", "state", "dtype_kwarg")
"""The fields of what the recorder and a program leave that say what happened; `leaves` are those of a kernel."""


def _changed_tensor(value: torch.Tensor, kind: Kind) -> torch.Tensor:
    if kind == "value":
        with torch.no_grad():
            return value if value.dtype == torch.bool else value * 2
    return value.detach().to(_changed_dtype(value.dtype, kind)) if kind in ("dtype", "low") else value


def _changed_dtype(value: torch.dtype, kind: Kind) -> torch.dtype:
    """Return float64 for "dtype", and for "low" the next lower precision."""
    if kind == "dtype":
        return torch.float64 if value != torch.float64 else torch.float32
    return {torch.float16: torch.bfloat16, torch.bfloat16: torch.float16}.get(value, value) if kind == "low" else value


def _changed_error(value: BaseException, kind: Kind) -> BaseException:
    if kind == "error":
        return AnotherError(*value.args)
    if kind == "text":
        try:
            return type(value)("something else")
        except TypeError:  # its class takes other arguments
            return Exception.__new__(type(type(value).__name__, (Exception,), {}), "something else")
    return value


def _changed_text(value: str, kind: Kind) -> str:
    if value in DTYPES:
        return name_of(_changed_dtype(DTYPES[value], kind))
    if match := _RAISED.match(value):
        return {"error": f"AnotherError{match['text']}", "text": f"{match['kind']}: something else"}.get(kind, value)
    return "something else" if kind == "text" else value


_OFF = re.compile(r"(.*is off by )(\S+)( in \S+;).*")


def nearer(text: str, before: Sequence[str]) -> bool:
    """Return whether a difference is one of those before with a smaller error, which is no worse result."""
    now, *was = (match and match.groups() for match in map(_OFF.fullmatch, (text, *before)))
    return any(now and one and now[::2] == one[::2] and float(now[1]) < float(one[1]) for one in was)


# ---- where a check sees results

SEEN: Mapping[Any, Mapping[str, int]] = {
    resolve_name(owner): places
    for owner, places in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
"""The functions that compare, by module or class, and at which place each is given what was seen."""
_CALLS = ("assert_raises", "assert_warns", "assert_no_warning")
"""Those that are given a call, whose exception or warning is what they look at."""


def _calling(name: str, call: Callable[[], object], kind: Kind) -> Callable[[], object]:
    """Return a call that raises or warns of something else; for `assert_raises`, one that raises at all."""

    def instead() -> object:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                made = call()
            except Exception as error:
                raise changed(error, kind) from None
        for warning in seen:
            text = "something else" if kind == "text" else str(warning.message)
            warnings.warn(text, AnotherWarning if kind == "error" else warning.category, stacklevel=2)
        if name == "assert_raises" and kind == "error":
            raise AnotherError("something else")
        return made

    return instead


@dataclass
class Changes:
    """The places at which a case deviates, in the order in which they are reached, and the one that is changed now."""

    seen: list[str] = field(default_factory=list)
    place: int = -1
    kind: Kind = ""
    said: list[str] = field(default_factory=list)
    """The differences that the change made and that there were not before."""
    right: bool = False
    """Whether it made the result right, as the other answer to yes or no is."""
    worth: list[tuple[Kind, ...]] = field(default_factory=list)
    """For each place, the kinds of change that the comparison notices: the others are not worth a run of the case."""
    _inside: bool = False

    def start(self, place: int = -1, kind: Kind = "") -> None:
        """Begin a run of a case, in which the result at a place is changed; -1 for none."""
        self.seen, self.place, self.kind, self.right, self.said = [], place, kind, False, []
        self.worth = [] if place < 0 else self.worth

    def now(self, name: str, noticed: Callable[[], object] | None = None) -> bool:
        """Note a place at which a result deviates. Return whether it is the one to change.

        In the run in which none is changed, `noticed` says whether the comparison tells the kind that is set from none.
        """
        self.seen.append(name)
        if self.place < 0:
            self.worth.append(tuple(self._tried(noticed)) if noticed and name not in _CALLS else KINDS)
        return len(self.seen) - 1 == self.place

    def _tried(self, noticed: Callable[[], object]) -> Iterator[Kind]:
        for kind in KINDS:
            self.kind = kind
            try:
                worth = noticed()
            except Exception:  # the case is to show what becomes of it
                worth = True
            if worth:
                yield kind

    def comparing(self, name: str, function: Callable[..., Any], argument: int) -> Callable[..., Any]:
        """Return a function that compares, which is given a changed result where this is the place to change."""

        def again(*given: Any, **named: Any) -> Any:
            seen = given[argument]
            instead = (
                _calling(name, seen, self.kind) if name in _CALLS else self._result(name, seen, *given[argument + 1 :])
            )
            self._inside = True
            try:
                return function(*given[:argument], instead, *given[argument + 1 :], **named)
            finally:
                self._inside = False

        @wraps(function)
        def compared(*given: Any, **named: Any) -> Any:
            if self._inside or (named and len(given) <= argument):
                return function(*given, **named)
            amp = given[0] if isinstance(given[0], DeviceAmp) else None
            before = list(amp.differences) if amp else []
            found = function(*given, **named)
            was = amp.differences[len(before) :] if amp else found

            def changing() -> Any:
                """Compare the changed result in place of the first one, and note what that made of it."""
                if amp:
                    del amp.differences[len(before) :]
                made = again(*given, **named)
                self._compare(was, amp.differences[len(before) :] if amp else made)
                return made

            def noticed() -> bool:
                """Try the change and take it back."""
                try:
                    changing()
                    return bool(self.said) or self.right
                finally:
                    self.said, self.right = [], False
                    if amp:
                        amp.differences[:] = [*before, *was]

            return changing() if was and self.now(name, noticed) else found

        return compared

    def _compare(self, was: str | Sequence[str], now: str | Sequence[str] | None) -> None:
        """Note which other differences of a result the change made, or that it made it right."""
        before, after = ([text] if isinstance(text, str) else list(text or ()) for text in (was, now))
        self.said, self.right = [text for text in after if text not in before and not nearer(text, before)], not now

    def _result(self, name: str, seen: Any, *rest: Any) -> Any:
        if name == "compare":  # a program has seen more than what deviates
            wanted = {(line, what): value for line, what, value in rest[0]}
            return [(*key, v if wanted.get((*key,)) == v else changed(v, self.kind)) for *key, v in seen]
        if name == "_several":  # the shapes of calls are no result
            return [(changed(dtypes, self.kind), shapes) for dtypes, shapes in seen]
        if name == "within":
            return [(changed(got, self.kind), want) for got, want in seen]
        return changed(seen, self.kind)

    @contextmanager
    def injected(self) -> Iterator[None]:
        """Enter around runs of cases: the functions that compare are replaced wherever a module has them."""
        with ExitStack() as stack:
            for owner, places in SEEN.items():
                for name, argument in places.items():
                    own = getattr(owner, name)
                    instead = self.comparing(name, own, argument)
                    holders = [owner, *(m for m in list(sys.modules.values()) if getattr(m, name, None) is own)]
                    for holder in {id(one): one for one in holders}.values():
                        stack.enter_context(patch.object(holder, name, instead))
            yield

    def raised(self, error: BaseException) -> BaseException:
        """Return what a case raised, or another exception where this is the place to change."""
        if isinstance(error, (CheckFailure, Unsupported, HarnessError, pytest.fail.Exception, pytest.skip.Exception)):
            return error
        if not self.now("exception", lambda: changed(error, self.kind) is not error):
            return error
        instead: BaseException = changed(error, self.kind)
        self.said = [f"{type(instead).__name__}: "] if instead is not error else []
        return instead


# ---- running the cases


@dataclass
class Verdict:
    """What became of an entry: how many changed results were red, and which were excused."""

    cases: int = 0
    red: int = 0
    excused: list[str] = field(default_factory=list)
    untouched: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


class Doubling:
    """Runs some cases of each entry once as they are, and once for each result that deviates, changed.

    Args:
        most: how many cases of an entry are run.
        only: ids of entries; none means each.
        places: how many results of a case are changed.
    """

    def __init__(self, most: int, only: Sequence[str] = (), places: int = 12) -> None:
        self.most, self.only, self.places = most, only, places
        self.changes = Changes()
        self.verdicts: dict[str, Verdict] = defaultdict(Verdict)
        self.done = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        known = config.pluginmanager.get_plugin("ampcheck-run").collector.deviations  # type: ignore[union-attr]
        items[:] = choose(items, known, self.most, self.only)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        begun = time.monotonic()
        self._change_each(item)
        self.done += 1
        key, of = item.stash[CASE].key, item.session.testscollected
        print(f"{self.done} of {of}: {key}, {time.monotonic() - begun:.1f} s", file=sys.stderr)
        return True

    def _change_each(self, item: pytest.Item) -> None:
        self.changes.start()
        with self.changes.injected():
            result = self._ran(item)
            ids = [name for name in result.get("deviation", "").split(", ") if name]
            seen, worth, key = list(self.changes.seen), list(self.changes.worth), item.stash[CASE].key
            if result["status"] != "deviation":
                if result["status"] in RED:
                    self.verdicts[", ".join(ids) or "?"].odd.append(f"{key}: {result['status']}: {result['message']}")
                return
            touched = False
            for place in spread(len(seen), self.places):  # the last, too: a sweep looks at its calls alone at the end
                for kind in worth[place]:
                    self.changes.start(place, kind)
                    under = self._ran(item)
                    touched = touched or bool(self.changes.said) or self.changes.right
                    # A sweep compares all calls in one program first, and says what differs in each alone.
                    told = [text.rstrip() for text in self.changes.said if text.rstrip() not in result["message"]]
                    if not any(text in under.get("message", "") for text in told):
                        continue
                    if kind == "value" and not {*ids}.isdisjoint(ANY_VALUE) and under["status"] not in RED:
                        continue
                    for name in ids:
                        verdict = self.verdicts[name]
                        if under["status"] in RED:
                            verdict.red += 1
                        else:
                            verdict.excused.append(f"{key}: {seen[place]}, {kind}: {'; '.join(told)[:600]}")
            for name in ids:
                self.verdicts[name].cases += 1
                if not touched and not all(_NO_RESULT.search(text) for text in result["message"].splitlines()):
                    self.verdicts[name].untouched.append(f"{key}: {result.get('message', '')[:300]}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        if call.when == "call" and call.excinfo is not None:
            error = self.changes.raised(call.excinfo.value)
            if error is not call.excinfo.value:
                error = error.with_traceback(call.excinfo.tb)
                call.excinfo = pytest.ExceptionInfo.from_exc_info((type(error), error, call.excinfo.tb))
        return (yield)

    def _ran(self, item: pytest.Item) -> dict[str, Any]:
        item._initrequest()  # type: ignore[attr-defined]  # as for each first run
        reports = runtestprotocol(item, log=False, nextitem=None)  # sets up and ends everything
        return next(report.ampcheck for report in reports if hasattr(report, "ampcheck"))


_NO_RESULT = re.compile(r" ran; eager mode raises |^ *$")
"""What a program gives where eager mode raises is promised nowhere, so that no change of it is wrong."""


def choose(items: Sequence[pytest.Item], known: KnownDeviations, most: int, only: Sequence[str]) -> list[pytest.Item]:
    """Return cases of each entry on each device, at most so many: the first one of each glob, then further ones."""
    taken: dict[tuple[str, str], int] = defaultdict(int)
    globs: set[tuple[str, str, str]] = set()
    found: dict[pytest.Item, None] = {}
    cases = [(item, item.stash[CASE]) for item in items if CASE in item.stash]
    spoken_of = [(item, case.device, case.name, known.of(case.device, case.name)) for item, case in cases]
    for again in (False, True):
        for item, device, name, entries in spoken_of:
            for entry in entries:
                if entry.kind == "unsupported" or entry.id in ANY_VALUE or (only and entry.id not in only):
                    continue
                glob = next(g for g in entry.cases if replace(entry, cases=(g,)).covers(name))
                if taken[entry.id, device] < most and (again or (entry.id, glob, device) not in globs):
                    globs.add((entry.id, glob, device))
                    taken[entry.id, device] += item not in found
                    found[item] = None
                    break
    return list(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases and print what the entries excuse, by the devices of a process. Returns 1 where one is too wide."""
    parser = argparse.ArgumentParser(prog="python -m scripts.deviations", description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="?", default=str(ROOT / "suites"), metavar="FOLDER", help="the suites to run")
    parser.add_argument("--most", type=int, default=3, metavar="N", help="cases of an entry and device; by default 3")
    parser.add_argument("--places", type=int, default=12, metavar="N", help="results of a case; by default 12")
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="of this entry alone; again for more")
    parser.add_argument("--device", action="append", default=[], metavar="NAME", help="on this device alone")
    parser.add_argument("--rule", action="append", default=[], metavar="NAME", help="of this rule alone")
    parser.add_argument("--deviations", action="append", default=[], metavar="FILE", help="a further deviations file")
    parser.add_argument("--nightly", action="store_true", help="choose from the cases of nightly runs, too")
    args = parser.parse_args(argv)
    if not args.device and len(found := groups(())) > 1:  # what a process has loaded changes what deviates in it
        given = sys.argv[1:] if argv is None else argv
        command = [sys.executable, "-m", "scripts.deviations", *given]
        return max(subprocess.call([*command, *(f"--device={name}" for name in names)]) for names in found)
    doubling = Doubling(args.most, args.only, args.places)
    options = [f"--{name}={value}" for name in ("device", "rule", "deviations") for value in getattr(args, name)]
    config = ["-c", str(ROOT / "ampcheck/pytest.ini"), f"--rootdir={ROOT}", "-p", "ampcheck.runner.plugin"]
    options += [*config, "--no-run-file", "-qq", "--tb=no", *["--nightly"] * args.nightly]
    out = io.StringIO()
    with redirect_stdout(out):  # pytest's words are about a run in which each case is run once
        code = pytest.main([args.suites, *options], plugins=[doubling])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(out.getvalue(), file=sys.stderr)
        report(doubling.verdicts)
        return int(code)
    return report(doubling.verdicts)


def report(verdicts: Mapping[str, Verdict]) -> int:
    """Print a line for each entry, and what it excuses. Returns 1 where there is something to mend."""
    wrong = 0
    for name, verdict in sorted(verdicts.items()):
        wide = "too wide" if verdict.excused else "nothing changed" if verdict.untouched else "not red before"
        bad = bool(verdict.excused or verdict.untouched or verdict.odd)
        wrong += bad
        print(f"{name}: {verdict.cases} cases, {verdict.red} changed results are red{f'; {wide}' if bad else ''}")
        for line in (*verdict.excused, *verdict.untouched, *verdict.odd):
            print(f"    {line}")
    print(f"{len(verdicts)} entries, {wrong} to mend")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
