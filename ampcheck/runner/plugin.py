"""The pytest plugin: options, the cases of each suite file, and what becomes of each case.

Importing it imports neither torch nor jax; both wait until a suite is collected.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest

from ampcheck.errors import UsageError
from ampcheck.runner import seeds, suites

_T = TypeVar("_T")

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ampcheck.runner.collect import Collector
    from ampcheck.runner.execute import Execution
    from ampcheck.runner.judge import Judge
    from ampcheck.runner.runlog import Found, RunLog
    from ampcheck.runner.supervisor.channel import Channel


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("ampcheck").addoption
    add("--device", action="append", default=[], metavar="NAME", help="a device to test; again for more")
    add("--device-module", action="append", default=[], metavar="MODULE", help="a module that defines DEVICES")
    add("--op", action="append", default=[], metavar="OVERLOAD", help="run the cases of this op alone")
    add("--rule", action="append", default=[], metavar="RULE", help="run the cases of this rule alone")
    add("--amp-dtype", action="append", default=[], metavar="DTYPE", help="run the cases of this region dtype alone")
    add(
        "--compiler",
        "--executor",
        action="append",
        default=[],
        metavar="NAME",
        help="only the cases of this compiler",
    )
    add(
        "--smoke",
        action="store_true",
        help="run a small choice of cases: some of each suite, rule, policy and compiler",
    )
    add("--shard", metavar="N/COUNT", help="run share N of COUNT; all shares together have every case once")
    add("--red-in", metavar="FILE", type=Path, help="run the cases that are red in this run file alone")
    add("--no-deviations", "--unwaive", action="store_true", help="let deviations fail like any other difference")
    add("--deviations", action="append", default=[], metavar="FILE", type=Path, help="a further deviations file")
    add("--manifest", metavar="FILE", type=Path, help="the cases that must run; one that does not is missing")
    add("--write-manifest", metavar="FILE", type=Path, help="write down which cases this run has")
    add("--reports", metavar="FOLDER", type=Path, default=Path("reports"), help="where run files go")
    add("--run-file", metavar="FILE", type=Path, help="the run file to write; by default a new one in the folder")
    add("--no-run-file", action="store_true", help="write no run file")
    add("--supervised", metavar="FILE", type=Path, help="run as a child of ampcheck run, by the plan in this file")
    add(
        "--nightly",
        action="store_true",
        help="explore by random programs; every op through every compiler and inductor; the op database everywhere",
    )


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
    found = {place: path for place, name in enumerate(args) if (path := suites.by_name(name))}
    for place, path in found.items():
        args[place] = path
    if found:
        args[:0] = ["--import-mode=importlib"]  # several suites have a file of one name
        # pytest chose the root without these files, and what lies outside of it has no whole node id.
        config._rootpath = suites.folder().parent
        config.pluginmanager.consider_pluginarg("no:cacheprovider")  # it would write into that folder
    return bool(found)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "op_cases(rule): run once for every op case of a rule")
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
        config.option.hypothesis_seed = seeds.of_programs(True, getattr(config.option, "hypothesis_seed", None))
    config.pluginmanager.register(Plugin(config), "ampcheck-run")


class Session(NamedTuple):
    """The parts of a run over suites: they collect its cases, execute each, and judge it."""

    collector: Collector
    execution: Execution
    judge: Judge


class Plugin:
    """One pytest run. `session` is set once a suite file is collected, `log` once there is a case to write."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.is_worker = hasattr(config, "workerinput")
        self.session: Session | None = None
        self.log: RunLog | None = None
        self.channel = _new_channel(config.option.supervised) if config.option.supervised else None
        self._deselected = 0
        self._selected: list[pytest.Item] = []
        self._stale: list[str] = []
        self._chosen = ""
        self._folder: TemporaryDirectory[str] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        # The library's own tests use this plugin too. A bad option is told here, before xdist starts its workers.
        if not self.is_worker and self._names_suite():
            if self.channel is not None:
                modules = self.config.option.device_module
                self.channel.preflight(f"device module {', '.join(modules)}: load" if modules else "devices: load")
            self._or_exit(lambda: _check(self.config))
            if self.channel is not None:
                self.channel.preflight("")

    @pytest.hookimpl(trylast=True)  # after pytest's own, so that a scenario's own parameters come first in its id
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if marker := _marker(metafunc.definition):
            if self.session is None:
                self.session = self._or_exit(lambda: _new_session(self.config))
            self.session.collector.generate(metafunc, marker)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        if self.session is not None and _marker(item):
            collector = self.session.collector
            self._or_exit(lambda: collector.collected(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        if self.session is not None:
            self.session.collector.drop_empty(items)
            self.session.execution.load_before_first(items)
        yield
        if self.session is not None:
            collector = self.session.collector
            left_out = [*collector.choose(items), *collector.left_out(items)]
            if left_out:
                self.config.hook.pytest_deselected(items=left_out)
                gone = set(left_out)
                items[:] = [item for item in items if item not in gone]
            self._selected = [item for item in items if collector.is_case(item)]
        items.sort(key=lambda item: item.get_closest_marker("forks") is None)
        if self.channel is not None:
            items[:] = self.channel.choose(items)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._deselected += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if self.session is None or session.testsfailed:  # pytest says what could not be collected
            return
        collector, _, judge = self.session
        found = collector.found(self._selected)
        if self.config.option.write_manifest:
            self._or_exit(lambda: _write_manifest(self.config.option.write_manifest, found))
        if (channel := self.channel) is not None:
            self._preflight(found)
            self._or_exit(lambda: channel.collected(collector, judge, self.config, self._selected, self._deselected))
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

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", {})
        self._stale = output.get("ampcheck_stale", self._stale)
        self._chosen = output.get("ampcheck_chosen", self._chosen)

    def _open(self, found: Found) -> None:
        if self.log is None and found:
            self._preflight(found)
            self.log = self._or_exit(lambda: _new_log(self.config, found))

    def _preflight(self, found: Found) -> None:
        """Examine the devices of the cases that a run begins with; its notes go to the header."""
        if self.config.option.collectonly or (self.channel and not self.channel.first):
            return
        notes = self._or_exit(lambda: _examine(self.config, found, self.channel))
        if self.channel is None and (reporter := self.config.pluginmanager.get_plugin("terminalreporter")):
            for note in notes:
                reporter.write_line(note)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.channel is not None:
            self.channel.start(nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        if self.session is None or not self.session.collector.is_case(item):
            return (yield)
        with self.session.execution.running(item):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if self.session is not None and self.session.collector.is_case(item):
            self.session.judge.judge(item, call, report)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for taker in (self.log, self.channel):
            if taker is not None:
                taker.take(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.session is not None:
            self._stale, self._chosen = self.session.collector.stale(), self.session.collector.chosen
        if self.is_worker:
            output: dict[str, Any] = self.config.workeroutput  # type: ignore[attr-defined]  # xdist's own
            output["ampcheck_stale"], output["ampcheck_chosen"] = self._stale, self._chosen
        if self.channel is not None:
            self.channel.finish(int(session.exitstatus))
        if self._folder is not None:
            self._folder.cleanup()
        if self.log is not None:
            session.exitstatus = self.log.finish(session.exitstatus, self._stale)

    def pytest_report_header(self) -> list[str]:
        from ampcheck.runner.runlog import header_lines

        return self._or_exit(lambda: header_lines(self.config)) if self._names_suite() else []

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.log is not None:
            self.log.summarize(terminalreporter)
            if self._chosen:
                terminalreporter.write_line(self._chosen)

    def _names_suite(self) -> bool:
        return any("suites" in str(argument) for argument in self.config.args)

    def _or_exit(self, make: Callable[[], _T]) -> _T:
        """Return what `make` returns; where the user's input is at fault, its sentence and exit code 2."""
        try:
            return make()
        except UsageError as error:
            if self.channel is not None:
                self.channel.refused(str(error))
            pytest.exit(str(error), returncode=2)


def _marker(definition: Any) -> pytest.Mark | None:
    found: pytest.Mark | None = definition.get_closest_marker("op_cases") or definition.get_closest_marker("scenario")
    return found


def _check(config: pytest.Config) -> None:
    """Raise UsageError for options that cannot be used."""
    from ampcheck.runner.runlog import check_files

    check_files(config)
    _new_session(config)


def _examine(config: pytest.Config, found: Found, channel: Channel | None) -> list[str]:
    """Take the preflight of the devices of some cases, and keep its notes for the header."""
    from ampcheck.devices.preflight import before_run
    from ampcheck.devices.registry import select
    from ampcheck.runner.runlog import NOTES

    names = {case["device"] for case in found.values()}
    devices = [d for d in select(config.option.device, config.option.device_module) if d.name in names]
    notes = before_run(
        devices, lambda device, step: channel.preflight(f"device {device.name!r}: {step}") if channel else None
    )
    return config.stash.setdefault(NOTES, notes)


def _new_session(config: pytest.Config) -> Session:
    from ampcheck.runner.collect import Collector
    from ampcheck.runner.execute import Execution
    from ampcheck.runner.judge import Judge

    collector = Collector(config)
    return Session(collector, Execution(collector.devices), Judge(config, collector))


def _new_log(config: pytest.Config, found: Found) -> RunLog:
    from ampcheck.runner.runlog import RunLog

    return RunLog(config, found)


def _write_manifest(path: Path, found: Found) -> None:
    from ampcheck.runner.runlog import write_manifest

    write_manifest(path, found)


def _new_channel(plan: Path) -> Channel:
    from ampcheck.runner.supervisor.channel import Channel, WorkerPlan

    return Channel(WorkerPlan.read(plan))
