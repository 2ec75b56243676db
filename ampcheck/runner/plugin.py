"""The pytest plugin: options, the cases of each suite file, and what becomes of each case.

Importing it imports neither torch nor jax; both wait until a suite is collected.
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from argparse import SUPPRESS
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from ampcheck.errors import UsageError
from ampcheck.runner.record import Result, cause_text, new_run_file, print_or_write, read, seed_of_programs, unmeasured
from ampcheck.runner.run import JUDGING, SELECTION, RunPlan, share_of, suite_by_name, suites_folder
from ampcheck.runner.summarize import RunRecorder, choice_lines, stale_lines
from ampcheck.runner.worker import Channel

_T = TypeVar("_T")

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from ampcheck.devices.base import Device
    from ampcheck.runner.collect import Collector, Found
    from ampcheck.runner.judge import Judge
    from ampcheck.spec.case import Case


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("ampcheck").addoption
    for name, option in {**SELECTION, **JUDGING}.items():
        add(name, **option)
    add("--red-in", metavar="FILE", type=Path, help="run the cases that are red in this run file alone")
    add("--write-manifest", metavar="FILE", type=Path, help="write down which cases this run has")
    add("--reports", metavar="FOLDER", type=Path, default=Path("reports"), help="where run files go")
    add("--run-file", metavar="FILE", type=Path, help="the run file to write; by default a new one in the folder")
    add("--no-run-file", action="store_true", help="write no run file")
    add("--supervised", action="store_true", help=SUPPRESS)  # a child of `ampcheck run`, which gives it a plan


class ByName:
    """The entry point of group `pytest11`: loads this plugin where `pytest --pyargs` names suites of it, only there.

    Every pytest of the environment has this object, so it adds no options, which might be those of another plugin.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config, args: list[str]) -> None:
        if _find_suites(early_config, args):
            early_config.pluginmanager.import_plugin(__name__)


BY_NAME = ByName()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    _find_suites(early_config, args)


def _find_suites(config: pytest.Config, args: list[str]) -> bool:
    """Put the files in the place of suites that `--pyargs` names. Returns whether there are any."""
    if "--pyargs" not in args:
        return False
    found = {place: path for place, name in enumerate(args) if (path := suite_by_name(name))}
    for place, path in found.items():
        args[place] = path
    if found:
        args[:0] = ["--import-mode=importlib"]  # several suites have a file of one name
        # pytest chose the root without these files, and what lies outside of it has no whole node id.
        config._rootpath = suites_folder().parent
        config.pluginmanager.consider_pluginarg("no:cacheprovider")  # it would write into that folder
    return bool(found)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "op_cases(rule): run once for every op case of a rule")
    config.addinivalue_line("markers", "nightly: takes long; runs with --nightly alone")
    config.addinivalue_line("markers", "rule(name): the rule of the scenarios of a file")
    config.addinivalue_line(
        "markers", "forks: runs before others, whose backward passes start threads of autograd that a fork lacks"
    )
    config.addinivalue_line("markers", "product(cells): the parameters of a scenario, as a product of their values")
    config.addinivalue_line(
        "markers", "scenario(types, dtypes, values, since): run on every device; see ampcheck.checks.scenario"
    )
    here = str(config.invocation_params.dir)
    if config.option.device_module and here not in sys.path:  # the program `pytest` does not find what lies there
        sys.path.insert(0, here)
    if config.option.nightly:  # one seed for the whole run, past midnight and in every worker
        config.option.hypothesis_seed = seed_of_programs(True, getattr(config.option, "hypothesis_seed", None))
    config.pluginmanager.register(Plugin(config), "ampcheck-run")


class Plugin:
    """One pytest run over suites.

    `collector` and `judge` are set once a suite file is collected, `recorder` once there is a case to write; none of
    a child of `ampcheck run`, which answers to it by `child` instead.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.is_worker = hasattr(config, "workerinput")
        self.collector: Collector | None = None
        self.judge: Judge | None = None
        self.recorder: RunRecorder | None = None
        self.child = SupervisedRun() if config.option.supervised else None
        self._deselected = 0
        self._selected: list[pytest.Item] = []
        self._stale: dict[str, list[str]] = {}
        self._chosen: tuple[int, int] | None = None
        self._gone: list[str] = []
        self._baselines: dict[str, list[str]] = {}
        self._folder: TemporaryDirectory[str] | None = None

    # ---- collecting
    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        # The library's own tests use this plugin too. A bad option is told here, before xdist starts its workers.
        if not self.is_worker and self._names_suite():
            if self.child is not None:
                modules = self.config.option.device_module
                self.child.preflight(f"device module {', '.join(modules)}: load" if modules else "devices: load")
            with warnings.catch_warnings():
                warnings.simplefilter("default")  # importing torch imports backends: their warnings are no errors here
                from ampcheck.runner.collect import check_files  # noqa: PLC0415  # imports torch

            self._or_exit(lambda: check_files(self.config))
            if self.child is not None:
                self._or_exit(partial(self.child.divide, self.config))
            self._new_collector()
            if self.child is not None:
                self.child.preflight("")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Look for garbage neither while cases are made nor, later, in what is there by then."""
        # Tens of thousands of items live to the end, as all of torch does. To go through them again and again takes a
        # quarter of the time of collecting, and half a second in each look of pytest's at the end of a process.
        looked = gc.isenabled()
        gc.disable()
        try:
            return (yield)
        finally:
            gc.freeze()
            if looked:
                gc.enable()

    @pytest.hookimpl(trylast=True)  # after pytest's own, so that a scenario's own parameters come first in its id
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if marker := _marker(metafunc.definition):
            if self.collector is None:
                from ampcheck.runner.judge import Judge  # noqa: PLC0415  # imports torch

                self.collector = self._new_collector()
                self.judge = Judge(self.config, self.collector.devices, self.collector.deviations)
            self.collector.generate(metafunc, marker)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        if (collector := self.collector) is not None and _marker(item):
            self._or_exit(lambda: collector.collected(item))
            # The judge writes what a report says. pytest's text, which is thrown away, parses each file of a traceback.
            item.repr_failure = lambda excinfo, style=None: str(excinfo.value)  # type: ignore[method-assign]

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        if self.collector is not None and self.judge is not None:
            self.collector.drop_empty(items)
            self.judge.load_before_first({pair[1].device for pair in map(self._case_of, items) if pair})
        yield
        if (collector := self.collector) is not None:
            left_out = [*collector.choose(items), *collector.left_out(items)]
            if left_out:
                self.config.hook.pytest_deselected(items=left_out)
                gone = set(left_out)
                items[:] = [item for item in items if item not in gone]
            self._selected = [item for item in items if collector.case_of(item)]
        items.sort(key=lambda item: item.get_closest_marker("forks") is None)
        if self.child is not None:
            items[:] = self.child.choose(items, lambda item: found[1] if (found := self._case_of(item)) else None)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._deselected += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if self.collector is None or self.judge is None or session.testsfailed:  # pytest says what cannot be collected
            return
        collector, judge = self.collector, self.judge
        found = collector.found(self._selected)
        if path := self.config.option.write_manifest:
            from ampcheck.runner.collect import manifest  # noqa: PLC0415  # imports torch

            self._or_exit(lambda: print_or_write(manifest(found), path, "manifest"))
        if (child := self.child) is not None:
            self._preflight(found)
            self._or_exit(lambda: child.begin(collector, self.config, found, self._deselected))
            child.judge_dead(judge, [pair for item in self._selected if (pair := collector.case_of(item))])
        elif self.is_worker:
            input: dict[str, Any] = self.config.workerinput  # type: ignore[attr-defined]  # xdist's own
            Path(input["ampcheck_cases"]).write_text(json.dumps(found), encoding="utf-8")
        elif not self.config.option.collectonly:
            self._open(found)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of xdist where to write its cases: it sends no more than node ids."""
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="ampcheck-")
        node.workerinput["ampcheck_cases"] = str(Path(self._folder.name) / node.gateway.id)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        path = Path(node.workerinput["ampcheck_cases"])
        if path.exists():
            self._open(json.loads(path.read_text(encoding="utf-8")))

    def _open(self, found: Found) -> None:
        """Begin the run file, once the cases are known."""
        if self.recorder is None and found:
            self._preflight(found)
            self.recorder = self._or_exit(lambda: self._new_recorder(found))

    def _new_recorder(self, found: Found) -> RunRecorder:
        from ampcheck.runner.collect import Choice, expected, header  # noqa: PLC0415  # imports torch

        option, choice, now = self.config.option, Choice(self.config.option), datetime.now(UTC)
        path = None if option.no_run_file else option.run_file or new_run_file(option.reports, now)
        recorder = RunRecorder(path)
        cases = expected(self.config, found, choice)
        recorder.begin(header(self.config, self._devices(), cases, now), cases)
        self._gone, recorder.baselines = choice.gone(found), self._baselines
        return recorder

    def _devices(self) -> Sequence[Device]:
        """Return the devices of the run; with xdist its workers alone have a collector."""
        from ampcheck.devices.registry import select  # noqa: PLC0415  # imports torch

        if self.collector is not None:
            return list(self.collector.devices.values())
        return select(self.config.option.device, self.config.option.device_module)

    def _preflight(self, found: Found) -> None:
        """Examine the devices of the cases that a run begins with; its notes go to the header."""
        if self.config.option.collectonly or (self.child and not self.child.first):
            return
        from ampcheck.devices.preflight import before_run  # noqa: PLC0415  # imports torch
        from ampcheck.runner.collect import NOTES  # noqa: PLC0415  # imports torch

        names, child = {case["device"] for case in found.values()}, self.child
        devices = [device for device in self._devices() if device.name in names]
        tell = (lambda device, step: child.preflight(f"device {device.name!r}: {step}")) if child else lambda *_: None
        notes = self._or_exit(lambda: self.config.stash.setdefault(NOTES, before_run(devices, tell)))
        if self.child is None and (reporter := self.config.pluginmanager.get_plugin("terminalreporter")):
            for note in notes:
                reporter.write_line(note)

    # ---- running
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.child is not None:
            self.child.send({"kind": "start", "node": nodeid})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        if self.judge is None or (found := self._case_of(item)) is None:
            return (yield)
        with self.judge.running(*found):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if self.judge is not None and (found := self._case_of(item)) is not None:
            self.judge.judge(*found, call, report)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        line = getattr(report, "ampcheck", None)
        if self.child is not None and line is not None:
            self.child.send({"kind": "case", **line})
        if self.recorder is None:
            return
        if line is not None:
            self.recorder.take(Result.of(line))
        elif str(report.when) == "???":  # how pytest-xdist reports a worker process that died under a case
            message, case = str(report.longrepr), self.recorder.nodes[report.nodeid]
            cause = cause_text("crash", message.partition(" while running ")[0], case["rule"])
            self.recorder.take(unmeasured(case, "crash", message=message, cause=cause))

    def _case_of(self, item: pytest.Item) -> tuple[pytest.Function, Case] | None:
        return self.collector.case_of(item) if self.collector is not None else None

    # ---- the end
    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", {})
        self._stale = output.get("ampcheck_stale", self._stale)
        self._chosen = output.get("ampcheck_chosen", self._chosen)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.collector is not None and self.child is None:  # a child said so as it began
            self._stale, self._chosen = self.collector.stale(), self.collector.chosen
        if self.is_worker:
            output: dict[str, Any] = self.config.workeroutput  # type: ignore[attr-defined]  # xdist's own
            output["ampcheck_stale"], output["ampcheck_chosen"] = self._stale, self._chosen
        if self.child is not None:
            self.child.finish(int(session.exitstatus))
        if self._folder is not None:
            self._folder.cleanup()
        if self.recorder is None or session.exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR):
            return
        self.recorder.stale = stale_lines([self._stale])
        self.recorder.finish()
        if self.recorder.failed() and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_report_header(self) -> list[str]:
        if not self._names_suite():
            return []
        from ampcheck.runner.collect import header_lines, notes  # noqa: PLC0415  # imports torch

        return [*self._or_exit(lambda: header_lines(self.config)), *notes(self.config)]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.recorder is None or not self.recorder.results:
            return
        self.recorder.deselected = len(terminalreporter.stats.get("deselected", ()))
        terminalreporter.write_sep("=", "conformance")
        chosen = choice_lines([self._chosen] if self._chosen else [], self.config.option.red_in, self._gone)
        for line in (self.recorder.closing(), *chosen, *self.recorder.write_files()):
            terminalreporter.write_line(line)

    def _names_suite(self) -> bool:
        return any("suites" in str(argument) for argument in self.config.args)

    def _new_collector(self) -> Collector:
        from ampcheck.runner.collect import Collector  # noqa: PLC0415  # imports torch

        names = self.child.devices if self.child is not None else ()
        collector = self._or_exit(lambda: Collector(self.config, names))
        self._baselines = collector.deviations.baselines()
        return collector

    def _or_exit(self, make: Callable[[], _T]) -> _T:
        """Return what `make` returns; where the user's input is at fault, its sentence and exit code 2."""
        try:
            return make()
        except UsageError as error:
            if self.child is not None:
                self.child.send({"kind": "refused", "message": str(error)})
            pytest.exit(str(error), returncode=2)


class SupervisedRun(Channel):
    """The child's side of `ampcheck.runner.run.Supervisor`: reads the plan, and answers with events.

    They are `groups` where the run has more devices than one process can have, `preflight` as each of its steps begins,
    `refused` where the user's input is at fault, one `header` with every case of all children of its group, `start` and
    `case` for each case, a line of the run file, and `footer` at the end, or `broken` where pytest stopped by itself.
    """

    def __init__(self) -> None:
        super().__init__()
        # pytest put an object that refuses to be read in the place of sys.stdin; --capture=sys leaves file 0 alone.
        self._told = sys.__stdin__ or sys.stdin
        self._plan = RunPlan(**json.loads(self._told.readline()))
        self.devices = self._plan.devices
        """The names of the devices that it tests."""
        self._processes = self._plan.shares

    @property
    def first(self) -> bool:
        """Return whether no earlier child ran cases of this share."""
        return not self._plan.done

    def divide(self, config: pytest.Config) -> None:
        """Divide the devices of the run into groups, where this is its first child, and take the first group."""
        from ampcheck.devices.registry import groups  # noqa: PLC0415  # imports torch
        from ampcheck.runner.collect import TESTED, chooses  # noqa: PLC0415  # imports torch

        if not self.devices:
            option = config.option
            found = groups(option.device, option.device_module, on_request=not chooses(config, suites_folder()))
            config.stash[TESTED] = [name for group in found for name in group]
            self.devices = found[0] if found else ()
            self.send({"kind": "groups", "groups": found})

    def choose(self, items: list[pytest.Item], case_of: Callable[[pytest.Item], Case | None]) -> list[pytest.Item]:
        """Return the items of this child's share that are not done yet."""
        self._processes = count = self._plan.processes(len(items))
        done = read(Path(self._plan.resumed)).results if self._plan.resumed else {}

        def has(item: pytest.Item) -> bool:
            case = case_of(item)
            fields = (case.op, case.sample, case.inputs) if case is not None else ("", "", "")
            own = share_of(item.nodeid, *fields, count) == self._plan.share and item.nodeid not in self._plan.done
            return own and (case is None or case.key not in done)

        return list(filter(has, items))

    def preflight(self, step: str) -> None:
        """Say that a step of the preflight begins, e.g. "device 'cpu': add"; "" for its end."""
        self.send({"kind": "preflight", "step": step})

    def begin(self, collector: Collector, config: pytest.Config, found: Found, deselected: int) -> None:
        """Say what all children of this group have to run, and wait for leave to run this one's share."""
        from ampcheck.runner.collect import expected, header, header_lines, notes  # noqa: PLC0415  # imports torch

        cases = expected(config, found, collector.choice)
        self.send(
            {
                "kind": "header",
                "header": {
                    **header(config, collector.devices.values(), cases, datetime.now(UTC)),
                    "processes": self._processes,
                },
                "lines": header_lines(config),
                "notes": notes(config),
                "smoke": collector.chosen,
                "gone": collector.choice.gone(found),
                "red_in": str(config.option.red_in or ""),
                "cases": cases,
                "deselected": deselected,
                "stale": collector.stale(),
                "baselines": collector.deviations.baselines(),
            }
        )
        if not self._told.readline():  # the supervisor is gone
            sys.exit(1)

    def judge_dead(self, judge: Judge, cases: list[tuple[pytest.Function, Case]]) -> None:
        """Judge the case that ended an earlier child, if there is one."""
        if self._plan.dead is not None:
            known = Result.of(self._plan.dead)
            for item, case in cases:
                if item.nodeid == known.node:
                    self.send({"kind": "case", **judge.dead(item, case, known).filled()})

    def finish(self, exitstatus: int) -> None:
        """Say how pytest ended."""
        done = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        self.send({"kind": "footer" if exitstatus in done else "broken", "status": int(exitstatus)})


def _marker(definition: Any) -> pytest.Mark | None:
    found: pytest.Mark | None = definition.get_closest_marker("op_cases") or definition.get_closest_marker("scenario")
    return found
