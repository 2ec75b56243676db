"""Run the suites in child processes, so that a case which ends its process or hangs costs that one case.

A child is a pytest run with `--supervised`: it reads a plan, which says which cases are its own, and answers with
events (`ampcheck.runner.plugin`). The supervisor follows its children and starts a fresh one for the remaining cases
where one died. Here are also the place of the suites, their command line, and the run of a case's plain torch lines.
Needs no torch.
"""

import argparse
import json
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

from ampcheck.errors import HarnessError, UsageError, unknown
from ampcheck.observe.driver import asked
from ampcheck.runner.record import RED, Result, Run, cause_text, manifest_hash, seed_of_programs, unmeasured
from ampcheck.runner.summarize import RunRecorder, choice_lines, stale_lines
from ampcheck.runner.worker import Worker
from ampcheck.spec.case import Shard

# ---- the suites, and how pytest is called
_PACKAGE = Path(__file__).resolve().parents[1]

_NEEDED = 2 * 2**30
_NEEDED_ON_GPU = 3 * 2**29
"""Bytes of memory that a process may need, with torch and JAX loaded."""


def suites_folder() -> Path:
    """Return the folder of the suites: inside an installed package, beside it in a checkout.

    Raises UsageError where it is in neither.
    """
    for place in (_PACKAGE / "suites", _PACKAGE.parent / "suites"):
        if (place / "eager").is_dir():
            return place
    raise UsageError(f"the suites are neither in {_PACKAGE} nor beside it; install ampcheck again")


def suite_by_name(name: str) -> str:
    """Return the path of a suite, or of a file of one, from its module name; "" where there is none.

    "ampcheck.suites.eager" is a folder. A node id may follow the name of a file:
    "ampcheck.suites.eager.test_ops::test_promote".
    """
    module, colons, rest = name.partition("::")
    head, *parts = module.removeprefix("ampcheck.").split(".")
    if head != "suites" or not module.startswith("ampcheck."):
        return ""
    path = suites_folder().joinpath(*parts)
    found = path if path.is_dir() else path.with_suffix(".py")
    return f"{found}{colons}{rest}" if found.exists() else ""


def suite_names() -> list[str]:
    """Return the suites there are."""
    return sorted(path.name for path in suites_folder().iterdir() if any(path.rglob("test_*.py")))


_MANY: dict[str, Any] = {"action": "append", "default": []}
SELECTION: dict[str, dict[str, Any]] = {
    "--device": {**_MANY, "metavar": "NAME", "help": "a device to test, by default every one this machine has"},
    "--device-module": {**_MANY, "metavar": "MODULE", "help": "a module that defines DEVICES"},
    "--op": {**_MANY, "metavar": "OVERLOAD", "help": "run the cases of this op alone"},
    "--rule": {**_MANY, "metavar": "RULE", "help": "run the cases of this rule alone"},
    "--amp-dtype": {**_MANY, "metavar": "DTYPE", "help": "run the cases of this region dtype alone"},
    "--compiler": {**_MANY, "metavar": "NAME", "help": "run the cases of this compiler alone"},
    "--executor": {"action": "append", "dest": "compiler", "help": argparse.SUPPRESS},  # its old name
    "--deviations": {**_MANY, "metavar": "FILE", "type": Path, "help": "a further deviations file"},
    "--smoke": {"action": "store_true", "help": "run a small choice: some of each suite, rule, policy and compiler"},
    "--shard": {"metavar": "N/COUNT", "help": "run share N of COUNT; all shares together have every case once"},
}
"""The options of `ampcheck run` and of pytest that choose cases."""
JUDGING: dict[str, dict[str, Any]] = {
    "--manifest": {"metavar": "FILE", "type": Path, "help": "the cases that must run; one that does not is missing"},
    "--no-deviations": {"action": "store_true", "help": "let deviations fail like any other difference"},
    "--unwaive": {"action": "store_true", "dest": "no_deviations", "help": argparse.SUPPRESS},  # its name until 0.2
    "--baseline": {"metavar": "FILE", "type": Path, "help": "the red cases that may stay as they are"},
    "--nightly": {
        "action": "store_true",
        "help": "explore by random programs; every op through every compiler and inductor; the op database everywhere",
    },
}
"""The options of both that say how cases run and are judged."""


def pytest_command(args: argparse.Namespace) -> list[str]:
    """Return the pytest command line for options of `ampcheck run`. Raises UsageError for an unknown suite or shard."""
    root = suites_folder()
    for name in args.suite:
        if name not in suite_names():
            raise unknown("suite", name, suite_names())
    if args.shard is not None:
        Shard.parse(args.shard)
    out = [sys.executable, "-m", "pytest", "-c", str(_PACKAGE / "pytest.ini"), f"--rootdir={root.parent}"]
    out += [f"--confcutdir={root}", "-p", "ampcheck.runner.plugin", "-q", "--no-header", "--tb=no"]
    for name, option in {**SELECTION, **JUDGING}.items():
        value = getattr(args, name.removeprefix("--").replace("-", "_"), None)  # an old name has none of its own
        if option.get("action") == "append":
            out += [f"{name}={one}" for one in value or ()]
        elif value:
            out += [name] if value is True else [f"{name}={value}"]
    if args.last_failed is not None:
        out += [f"--red-in={args.last_failed}"]
    if args.keyword is not None:
        out += ["-k", args.keyword]
    if args.nightly:
        out += [f"--hypothesis-seed={seed_of_programs(True)}"]  # the same one in every child
    return [*out, *([str(root / name) for name in dict.fromkeys(args.suite)] or [str(root)])]


def environment(processes: int) -> dict[str, str]:
    """Return the environment of a child: it finds this ampcheck and the user's modules, and shares the cores."""
    env = dict(os.environ)
    env.pop("PYTEST_ADDOPTS", None)
    here = _PACKAGE.parent
    # A folder of installed packages is on the path anyway, and must not come before the standard library.
    own = [] if here.name in ("site-packages", "dist-packages") else [str(here)]
    env["PYTHONPATH"] = os.pathsep.join([*own, os.getcwd(), *filter(None, [env.get("PYTHONPATH", "")])])
    if processes > 1:
        env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    return env


def fitting(cores: int | None = None, memory: int | None = None) -> int:
    """Return how many processes the machine can run side by side: one per core, as far as memory suffices.

    `cores`, `memory` in bytes: what is free to use, by default what this machine says. Each has a context on the GPU.
    """
    if cores is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if memory is None:
        memory = _free_memory()
    free = [int(row[0]) * 2**20 for row in asked("memory.free") if row[0].isdecimal()]
    most = [min(free) // _NEEDED_ON_GPU] if free else []
    return max(1, min([cores, *most, *([] if memory is None else [memory // _NEEDED])]))


def _free_memory() -> int | None:
    """Return the free memory in bytes, within the limit of a container; None where Linux is not asked."""
    found = []
    try:
        rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
        found.append(int(rows["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / name).read_text(encoding="utf-8").strip() for name in ("memory.max", "memory.current"))
        found.append(int(limit) - int(used))
    except (OSError, ValueError):  # not in a container, or one without a limit, which reads "max"
        pass
    return max(0, min(found))


# ---- the children
START_LIMIT = 600.0
"""Seconds a child may take to collect the suites."""

PREFLIGHT_LIMIT = 60.0
"""Seconds a step of the preflight may take at least: a backend's libraries are loaded in it."""

END_LIMIT = 600.0  # freeing thousands of compiled programs takes minutes on a busy machine
"""Seconds a child may take to end after its last case."""

_POLL = 0.03

_ENOUGH = 2
"""After so many cases of an op or of a scenario that hung, no further one is tried."""
_SHORT, _LONGER = 30.0, 10.0
"""Once a case hung, the next may take so many seconds, or so often the time of the longest case that ended."""

_LEAVE = "run"
"""Tells a child that has collected its cases to run them."""

_REFUSED = re.compile(r"^ERROR: (.+)", re.MULTILINE)
"""How pytest says that it cannot use its command line, such as the expression behind -k."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The task of a child: the cases of share number `share`, from 0, of `shares`, but the node ids of `done`.

    `devices`: the names of those that it tests. The first child has none: it divides the devices of the run into groups
    that one process can have, says so, and tests the first group. `least`: there are fewer shares where each would have
    fewer cases than this. `dead`: the fields of a case that ended an earlier child, as far as they are known, for this
    one to judge. `resumed`: the file of an interrupted run, whose cases are done, too.
    """

    share: int
    shares: int
    devices: Sequence[str] = ()
    least: int = 0
    done: Sequence[str] = ()
    dead: Mapping[str, Any] | None = None
    resumed: str = ""

    def processes(self, cases: int) -> int:
        """Return how many shares so many cases are divided into."""
        return max(1, min(self.shares, cases // self.least)) if self.least else self.shares


def share_of(node: str, op: str, sample: str, inputs: str, processes: int) -> int:
    """Return the share of a case, from 0, by its fields alone, so that no child depends on another's order.

    The cases of an op's sample are of one share, on every device and in every dtype: they compile the same programs and
    are compared with the same references. A scenario's are divided by its parameters, which are its `inputs`.
    """
    scenario = node.partition("[")[0].endswith(f"::test_{op}")
    return crc32("/".join([op, sample, *([inputs] if scenario else [])]).encode()) % processes


@dataclass(slots=True)
class _Share:
    """One share of a group's cases and the child that runs it now, once it has leave to.

    `current`: the case that began last in this child.
    """

    group: int
    number: int
    child: Worker
    since: float
    leave: bool
    done: set[str] = field(default_factory=set)
    current: str = ""
    answered: bool = False
    collected: bool = False
    preflight: str = ""
    """The device and step of the preflight that goes on; "" before and after it."""
    ended: str = ""
    dead: Result | None = None
    """A case that ended an earlier child, kept until the present one has judged it."""


class Supervisor:
    """Runs the suites in `processes` children side by side, each with devices that one process can have.

    The first child of each group of devices collects the group's cases at once, and waits for its turn to run them.

    Args:
        arguments: of pytest.
        env: of the children.
        recorder: takes the results.
        processes: how many children there are at most.
        least: start fewer children where each would have fewer cases than this. The first one counts the cases before
            the others start.
        timeout: seconds a case may take.
        max_red: stop when this many cases are red; 0 for no limit.
        resumed: an interrupted run to go on with: its results are taken, and its cases do not run again.
        tick: called often, to show progress.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        recorder: RunRecorder,
        *,
        processes: int = 1,
        least: int = 0,
        timeout: float = 120.0,
        max_red: int = 0,
        resumed: Run | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        # The child reads its plan from file 0, and what it says below Python as it dies stays in its log.
        self._command = [*arguments, "--capture=sys", "--supervised"]
        self._env, self._recorder, self._tick = env, recorder, tick
        self._processes, self._least = processes, least
        self._timeout, self._max_red, self._resumed = timeout, max_red, resumed
        self._groups: list[Sequence[str]] = [()]
        """The names of the devices of each group; the first child says which there are."""
        self._heads: dict[int, dict[str, Any]] = {}
        """What the first child of each group said when it had collected the group's cases."""
        self._shares: list[_Share] = []
        self._hung_cases: dict[tuple[str, ...], list[str]] = defaultdict(list)
        """The keys of the cases that hung, by device and op, or by device and scenario."""
        self._longest = 0.0
        """The seconds of the longest case that ended by itself."""

    def run(self) -> None:
        """Run every case to an end.

        Raises UsageError where a child refuses the user's input, HarnessError where one fails outside of every case.
        Whatever is raised, KeyboardInterrupt included, what was measured until then has been taken.
        """
        try:
            self._start(0, 0)
            while open_shares := [share for share in self._shares if share.ended != "footer"]:
                for share in open_shares:
                    self._follow(share)
                self._go_on()
                self._tick()
                if self._max_red and self._recorder.red() >= self._max_red:
                    break
                time.sleep(_POLL)
        finally:
            self._stop()

    def _start(self, group: int, number: int, *, leave: bool = False) -> None:
        """Start the child of a share."""
        plan = RunPlan(number, self._processes, self._groups[group], self._least)
        self._shares.append(_Share(group, number, self._child(plan, leave=leave), time.monotonic(), leave))

    def _child(self, plan: RunPlan, *, leave: bool) -> Worker:
        child = Worker(self._command, self._env)
        if self._resumed is not None:
            plan = replace(plan, resumed=str(self._resumed.path.resolve()))
        child.tell(json.dumps(asdict(plan)))
        if leave:
            child.tell(_LEAVE)
        return child

    def _go_on(self) -> None:
        """Let shares run while there are fewer than `processes`, once the cases of all groups are known.

        The shares of a group are next to each other, so that few groups are in memory at a time.
        """
        if len(self._heads) < len(self._groups):
            return
        started = {(share.group, share.number): share for share in self._shares}
        running = sum(1 for share in self._shares if share.leave and share.ended != "footer")
        for group, head in sorted(self._heads.items()):
            for number in range(head["header"]["processes"]):
                share = started.get((group, number))
                if running >= self._processes:
                    return
                if share is None:
                    self._start(group, number, leave=True)
                elif not share.leave:
                    share.child.tell(_LEAVE)
                    share.since, share.leave = time.monotonic(), True
                else:
                    continue
                running += 1

    def _stop(self) -> None:
        for share in self._shares:
            share.child.kill()
        for share in self._shares:
            for event in share.child.events():
                if event["kind"] == "case":
                    self._take(share, event)
            self._release(share)
            share.child.stop()

    # ---- one look at one child
    def _follow(self, share: _Share) -> None:
        status = share.child.ended()  # before the events, so that none is written after the last look at them
        self._drain(share)
        if share.ended == "footer":
            self._finished(share)
        elif status is not None:
            self._died(share, "error" if share.ended == "broken" else "crash", share.child.how())
        elif (share.leave or not share.collected) and time.monotonic() - share.since > self._limit(share):
            self._hung(share)

    def _hung(self, share: _Share) -> None:
        before = share.current, share.answered
        share.child.abort()
        self._drain(share)
        if share.ended == "footer":
            self._finished(share)
        elif (share.current, share.answered) != before:
            self._died(share, "crash", share.child.how())  # it went on just as it was ended; the next case pays for it
        else:
            self._died(share, "timeout", f"nothing happened for {self._limit(share):g} s{share.child.where()}")

    def _limit(self, share: _Share) -> float:
        if share.collected:
            hung = any(self._hung_cases.values())
            return min(self._timeout, max(_SHORT, _LONGER * self._longest)) if hung else self._timeout
        return max(self._timeout, PREFLIGHT_LIMIT) if share.preflight else START_LIMIT

    def _drain(self, share: _Share) -> None:
        for event in share.child.events():
            share.since = time.monotonic()
            self._take(share, event)

    def _take(self, share: _Share, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "refused":
            raise UsageError(event["message"])
        if kind == "groups":
            self._groups = event["groups"] or [()]
            for group in range(1, len(self._groups)):
                self._start(group, 0)
        elif kind == "header":
            share.collected, share.preflight = True, ""
            if share.group not in self._heads:
                self._heads[share.group] = event
                self._begin()
        elif kind == "preflight":
            share.preflight = event["step"]
        elif kind == "start":
            share.current, share.answered = event["node"], False
        elif kind == "case":
            result = Result.of(event)
            if share.dead is not None and result.key == share.dead.key:
                share.dead = None
            else:
                share.answered = True
                share.done.add(share.current)
                self._longest = max(self._longest, result.seconds)
            self._recorder.take(result)
        elif kind in ("footer", "broken"):
            share.ended = kind

    def _begin(self) -> None:
        """Begin the run file, once the cases of all groups are known."""
        if len(self._heads) < len(self._groups):
            return
        heads = [self._heads[group] for group in range(len(self._groups))]
        recorder, headers = self._recorder, [head["header"] for head in heads]
        cases = {key: case for head in heads for key, case in head["cases"].items()}
        gone = [key for key in heads[0]["gone"] if all(key in head["gone"] for head in heads)]
        recorder.lines = [*heads[0]["lines"], *dict.fromkeys(note for head in heads for note in head["notes"])]
        recorder.lines += choice_lines([head["smoke"] for head in heads if head["smoke"]], heads[0]["red_in"], gone)
        recorder.stale = stale_lines([head["stale"] for head in heads])
        recorder.deselected = sum(head["deselected"] for head in heads)
        recorder.baselines = heads[0]["baselines"]
        merged = {
            "cases": len(cases),
            "manifest": manifest_hash(cases),
            "devices": [device for header in headers for device in header["devices"]],
            "preflight": list(dict.fromkeys(note for header in headers for note in header["preflight"])),
            "processes": max(header["processes"] for header in headers),
        }
        if self._resumed is not None:
            _check_resumed(self._resumed, {**headers[0], **merged})
        recorder.begin({**headers[0], **merged}, cases)
        for result in self._resumed.results.values() if self._resumed is not None else ():
            recorder.take(result)

    def _release(self, share: _Share) -> None:
        if share.dead is not None:
            self._recorder.take(share.dead)
            share.dead = None

    # ---- a child that ended, or has to
    def _finished(self, share: _Share) -> None:
        """End a child that ran all its cases; it still has to end well."""
        self._release(share)
        notes = self._recorder.notes
        deadline = time.monotonic() + END_LIMIT
        while share.child.ended() is None and time.monotonic() < deadline:
            time.sleep(_POLL)
        status = share.child.ended()
        if status is None:
            share.child.abort()
            notes.append(f"a process did not end within {END_LIMIT:g} s of its last case")
        elif status not in (0, 1, 5):  # pytest's codes for passed, failed and nothing to do
            notes.append(f"a process ended after its last case with {share.child.how()}")
        elif status == 1 and not any(result.status in RED for result in self._recorder.log):
            notes.append(f"pytest failed outside of every case: {_tail(share.child.printed())}")

    def _died(self, share: _Share, status: str, how: str) -> None:
        """Give the case that a child died under its result, and the others a fresh child."""
        message = how if status == "timeout" else f"the process ended with {how}"
        printed = share.child.printed()
        if not share.current:
            if share.preflight:
                message = how if status == "timeout" else f"the process ended with {share.child.reason()}"
                raise UsageError(f"preflight of {share.preflight}: {message}; ampcheck onboard shows every step")
            if refused := _REFUSED.search(printed):
                raise UsageError(refused[1])
            raise HarnessError(f"a process that runs the suites ended with {how}\n{_tail(printed, 30)}")
        self._release(share)
        if share.answered:
            message = f"after the case: {message}"
        elif status == "error":
            message = f"pytest stopped: {_tail(printed)}"
        share.done.add(share.current)
        case = self._recorder.nodes[share.current]
        if status == "timeout":
            self._leave_out(share, case)
        brief = message.partition("; it was in ")[0]
        share.dead = unmeasured(
            case,
            status,
            message=message,
            cause=cause_text(status, brief, case["rule"], where=share.child.frame()),
            seconds=round(time.monotonic() - share.since, 3),
        )
        share.child.stop()
        devices, done = self._groups[share.group], sorted(share.done)
        plan = RunPlan(share.number, self._processes, devices, self._least, done, share.dead.filled())
        share.child = self._child(plan, leave=True)
        share.since, share.current, share.answered = time.monotonic(), "", False
        share.collected, share.ended = False, ""

    def _leave_out(self, share: _Share, case: Mapping[str, str]) -> None:
        """Note that a case hung, and end those of its share without trying them that would be a third to do so."""
        self._hung_cases[_subject(case)].append("{suite}/{rule}/{id}".format_map(case))
        processes = self._heads[share.group]["header"]["processes"]
        for node, other in self._recorder.nodes.items():
            found, key = self._hung_cases.get(_subject(other), ()), "{suite}/{rule}/{id}".format_map(other)
            fields = other.get("op", ""), other.get("sample", ""), other.get("inputs", "")
            theirs = share_of(node, *fields, processes) == share.number
            theirs = theirs and other["device"] in self._groups[share.group]
            if theirs and len(found) >= _ENOUGH and key not in found and key not in self._recorder.results:
                share.done.add(node)
                why = f"not tried, since two cases of {other.get('op') or other['id'].partition('-')[0]} hung"
                cause = cause_text("timeout", why, other["rule"])
                message = f"{why}: {', '.join(found[:_ENOUGH])}"
                self._recorder.take(unmeasured(other, "timeout", message=message, cause=cause))


def _check_resumed(run: Run, header: Mapping[str, Any]) -> None:
    """Raise UsageError where an interrupted run had other cases or versions than one that begins with a header."""
    told = {
        "manifest": f"it has {run.header.get('cases')} cases, and these options choose {header['cases']}, or others",
        "versions": "it ran with other versions of torch or of what decides results beside it",
        "seed": "its random programs have another seed",
    }
    for name, why in told.items():
        if run.header.get(name) != header.get(name):
            raise UsageError(f"the run {run.path} cannot be resumed: {why}")


def _subject(case: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a case that hangs is about: an op of its device, or a scenario there."""
    scenario = () if case.get("op") else (case["suite"], case["rule"], case["id"].partition("-")[0])
    return case.get("device", ""), case.get("op", ""), *scenario


def _tail(printed: str, lines: int = 3) -> str:
    """Return the last lines of what a process printed."""
    return "\n".join([line for line in printed.splitlines() if line.strip()][-lines:])


# ---- a case in plain torch
PROGRAM_LIMIT = 60.0
"""Seconds that one program may take."""
PROGRAMS_LIMIT = 240.0
"""Seconds that all programs of a run may take."""

YES = "reproduces"
NO = "does not reproduce outside of ampcheck"

_RAISED = re.compile(r"^(?:[\w.]+\.)?(?P<kind>\w+)(?::|$)")


def reproduce(results: Iterable[Result], env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Run the plain torch lines of some red cases, and yield the key of each with what came of it, in words.

    `env`: the environment, in which the device's module is found. Cases without such lines, and those that
    pass now, are left out.
    """
    end = time.monotonic() + PROGRAMS_LIMIT
    for result in results:
        if result.torch and result.status != "fixed":
            left = min(PROGRAM_LIMIT, end - time.monotonic())
            yield result.key, _said(result, env, left) if left > 0 else "was not run, for want of time"


def _said(result: Result, env: Mapping[str, str], limit: float) -> str:
    with TemporaryDirectory(prefix="ampcheck-") as folder:
        program = Path(folder) / "program.py"  # TorchScript and Dynamo read the source of what they compile
        program.write_text(result.torch, encoding="utf-8")
        with Worker([sys.executable, str(program)], env, "") as process:
            try:
                process.hear(limit)  # it answers nothing, so this waits for its end
            except TimeoutError:
                return YES if result.status == "timeout" else f"{NO} (it did not end within {limit:.0f} s)"
            return _judged(result, process.status(), process.printed())


def _judged(result: Result, status: int, printed: str) -> str:
    """Return what a program that ended shows of a case. `status`: its exit code, negative for a signal."""
    _, raised, trace = printed.rpartition("Traceback (most recent call last):\n") if status == 1 else ("", "", "")
    if result.status == "crash":
        return YES if status and not raised else NO
    if re.search(r"^FAIL ", printed, re.MULTILINE):
        return YES
    if raised:
        match = next((found for line in trace.splitlines() if (found := _RAISED.match(line))), None)
        kind = match["kind"] if match else "an exception"
        told = f"{result.message}\n{result.traceback}"
        return YES if re.search(rf"\b{kind}\b", told) else f"{NO} (it raised {kind})"
    if status:
        how = f"exit code {status}" if status > 0 else f"signal {-status}"
        return f"{NO} (it ended with {how})"
    return NO
