"""One pytest run over the suites: makes the cases of each file, runs them apart from each other, judges them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from packaging.version import Version

from ampcheck import reproduce, samples
from ampcheck.checks.cases import compiled_cases, database_cases, executors, op_cases, smoke
from ampcheck.checks.parity import simulate_cuda
from ampcheck.checks.scenario import Amp
from ampcheck.compilers.kinds import quiet
from ampcheck.devices.base import Device
from ampcheck.devices.registry import known, select
from ampcheck.errors import CheckFailure, Unsupported, UsageError, one_line
from ampcheck.observe.isolation import reset
from ampcheck.runner import causes, summary
from ampcheck.runner.deviations import JIT, KERNELS, SHARED, Deviation, KnownDeviations, after_deviations
from ampcheck.runner.outcome import mark, raised, status_of
from ampcheck.runner.results import RED, Result
from ampcheck.runner.runlog import Choice
from ampcheck.samples import op_database
from ampcheck.spec.case import GRADIENT, Case
from ampcheck.spec.dtypes import LOW
from ampcheck.spec.executors import EXECUTORS
from ampcheck.spec.rules import RULES
from ampcheck.spec.torch_dtypes import DTYPES, name_of

_CASE = pytest.StashKey[Case]()
_WARNED = pytest.StashKey[list[warnings.WarningMessage]]()


# PyTorch warns once a process when a deprecated op is called; that is no part of what is tested, and calling each of
# them is.
_OP_WARNINGS = (
    r"(?s).*(chain_matmul|frobenius_norm|nuclear_norm|cholesky|qr|lu|lu_solve|triangular_solve|svd)\b.* deprecated",
    # stft asks for a window, and is right without one.
    "A window was not provided",
    # Half-precision complex is experimental; fft in half precision makes it on fake tensors.
    "ComplexHalf support is experimental",
    # layer_norm on the CPU warns where weight and input differ in dtype, which the mixed inputs of a case do.
    "(?s).*mixed d?type",
    # The backward pass of a loss resizes its output where the arguments were broadcast.
    "(?s)An output with one or more elements was resized",
)


class Session:
    """Devices, deviations and cases of one run. Raises UsageError where an option names something unknown."""

    def __init__(self, config: pytest.Config) -> None:
        option = config.option
        if option.smoke and option.nightly:
            raise UsageError("--smoke and --nightly exclude each other: one runs a few cases, the other more than all")
        self.modules = tuple(option.device_module)
        self.devices = select(option.device, option.device_module)
        self.deviations = KnownDeviations(self.devices, option.deviations, tuple(known(self.modules)))
        self.without_deviations = bool(option.no_deviations)
        self.names: list[str] = []
        self.chosen = ""
        """How many cases a smoke run chose of how many; "" for another run."""
        self._at_night: list[str] = []
        self._device = {device.name: device for device in self.devices}
        self._defaults = {device.type: device.default_amp for device in self.devices}
        self._nightly = bool(option.nightly)
        self._smoke = bool(option.smoke)
        self._further = _further(option)
        self._ops = _chosen(option.op, {**samples.catalogue(), **op_database.rows()}, "op")
        self._rules = _chosen(option.rule, RULES, "rule")
        self._dtypes = _chosen(option.amp_dtype, LOW, "region dtype")
        self._executors = _chosen(option.executor, EXECUTORS, "executor")
        self._named = bool(option.device)
        self.choice = Choice(option)
        self._arguments = [config.invocation_params.dir / str(argument) for argument in config.args]
        self._root: Path | None = None
        self._unmade: list[Device] = []
        self._nodes: dict[str, str] = {}
        """The node id of each case, by key."""

    # ---- cases

    def generate(self, metafunc: pytest.Metafunc, marker: pytest.Mark) -> None:
        """Parametrize a suite function over its cases on the chosen devices."""
        rule = _rule(metafunc.definition, marker)
        suite = _suite(Path(metafunc.module.__file__ or "").resolve())
        self._root = suite.parent
        if self._rules and rule not in self._rules:
            metafunc.parametrize("case" if marker.name == "op_cases" else "amp", [])
        elif marker.name == "op_cases":
            pairs = [
                (case, d) for d in self.devices for case in self._cases(d, suite.name, marker) if self._wanted(case)
            ]
            metafunc.parametrize(("case", "device"), pairs, ids=[case.id for case, _ in pairs])
        else:
            amps = [
                (device, dtype)
                for device in self.devices
                if _suits(device, **marker.kwargs)
                for dtype in (device.amp_dtypes if marker.kwargs["dtypes"] == "all" else (device.default_amp,))
                if (not self._dtypes or dtype in self._dtypes) and not self._ops
            ]
            metafunc.parametrize("amp", amps, ids=[f"{dtype}-{device.token}" for device, dtype in amps], indirect=False)

    def _cases(self, device: Device, suite: str, marker: pytest.Mark) -> Iterator[Case]:
        if marker.kwargs.get("compiled"):
            yield from compiled_cases(device, marker.args[0], suite, nightly=self._nightly)
            return
        yield from op_cases(device, marker.args[0], suite)
        if marker.kwargs.get("database") and (device.database or self._nightly):
            yield from database_cases(device, suite)

    def _wanted(self, case: Case) -> bool:
        return all(
            not chosen or value in chosen
            for chosen, value in (
                (self._ops, case.op),
                (self._dtypes, case.amp),
                (self._executors, case.executor),
            )
        )

    def collected(self, item: pytest.Item) -> None:
        """Remember what a collected item is a case of."""
        function = _function(item)
        params: dict[str, Any] = function.callspec.params
        if isinstance(params.get("case"), Case):
            case = params["case"]
        elif isinstance(params.get("amp"), tuple):
            device, dtype = params["amp"]
            name = function.originalname.removeprefix("test_")
            executor = str(params.get("executor", ""))
            # pytest's label for the parameters of the scenario, of which the executor is a field of the case.
            label = function.callspec.id.removesuffix(f"{dtype}-{device.token}").rstrip("-")
            variant = "-".join(word for word in label.split("-") if word != executor)
            rule = _rule(item, item.get_closest_marker("scenario"))
            case = Case(_suite(item.path).name, rule, name, "", variant, dtype, device.name, device.token, executor)
        else:
            return
        if self._nodes.setdefault(case.key, item.nodeid) != item.nodeid:
            raise UsageError(f"{item.nodeid} and {self._nodes[case.key]} are both {case.key}")
        item.stash[_CASE] = case
        item.extra_keyword_matches.add(case.rule)  # for -k, whatever the file is called
        self.names.append(case.name)

    def knows(self, item: pytest.Item) -> bool:
        """Whether an item is a case."""
        return _CASE in item.stash

    def found(self, items: list[pytest.Item]) -> dict[str, dict[str, str]]:
        """The fields of items that are cases, by key; see `ampcheck.runner.runlog.Found`."""
        return {item.stash[_CASE].key: {**item.stash[_CASE].fields(), "node": item.nodeid} for item in items}

    def drop_empty(self, items: list[pytest.Item]) -> None:
        """Leave out the placeholders pytest makes for a function without cases: absent is not skipped."""
        made = [item for item in items if "NOTSET" not in item.nodeid]
        self._at_night = [item.stash[_CASE].name for item in made if self.knows(item) and self._kept(item, True)]
        items[:] = [item for item in made if self._kept(item, self._nightly)]
        self.names = [item.stash[_CASE].name for item in items if self.knows(item)]
        used = {item.stash[_CASE].device for item in items if self.knows(item)}
        self._unmade = [device for device in self.devices if device.backend and device.name in used]

    def choose(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Take the cases that a smoke run leaves out of `items` and return them; none in another run."""
        if not self._smoke:
            return []
        known = [item for item in items if self.knows(item)]
        kept = smoke([item.stash[_CASE] for item in known])
        out = {item for item, keep in zip(known, kept, strict=True) if not keep}
        items[:] = [item for item in items if item not in out]
        self.chosen = f"smoke: {len(items)} of {len(known)} cases"
        return [item for item in known if item in out]

    def left_out(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """The cases among some items that another shard runs, or that were not red."""
        return [item for item in items if self.knows(item) and not self.choice.has(item.stash[_CASE].key)]

    def _kept(self, item: pytest.Item, nightly: bool) -> bool:
        """Whether an item is of a chosen executor and of one that takes its device's programs."""
        case = item.stash.get(_CASE, None)
        if case is None or (case.suite != "jit" and not self._executors):
            return True
        runs = executors(self._device[case.device], nightly=nightly)
        if not case.executor and not self._executors:
            return bool(runs)
        return case.executor in runs and (not self._executors or case.executor in self._executors)

    def stale(self) -> list[str]:
        """A sentence for each deviation that speaks of no case, where every case of the devices was collected."""
        everything = self._root is not None and any(self._root.is_relative_to(a.resolve()) for a in self._arguments)
        if self._ops or self._rules or self._dtypes or self._executors or self._smoke or not everything:
            return []
        others = [device for name, device in known(self.modules).items() if name not in self._device]
        files = [device.deviations for device in others if device.deviations]
        nightly = [c.name for d in self.devices if not d.database for c in database_cases(d)]
        nightly += [c.name for d in self.devices for rule in RULES for c in compiled_cases(d, rule, nightly=True)]
        return self.deviations.stale(
            [*self.names, *self._at_night, *nightly], unjudged=[*files, SHARED, JIT, KERNELS] if self._named else files
        )

    # ---- running

    @contextmanager
    def running(self, item: pytest.Item) -> Iterator[None]:
        """Around the call of a case: fresh autocast state, the device entered, and a scenario's findings raised."""
        case = item.stash[_CASE]
        amp = None
        given: dict[str, Any] = _function(item).funcargs
        if "amp" in given:
            device, dtype = given["amp"]
            amp = given["amp"] = Amp(device, dtype)
        while self._unmade:  # autograd knows the devices there are at its first backward pass, and none made later
            with self._unmade.pop().activate():
                pass
        if (reason := self._device[case.device].without_autograd) and RULES[case.rule].autograd:
            raise Unsupported(reason)
        if case.rule == "moves" and (reason := self._device[case.device].new_parameters()):
            raise Unsupported(reason)
        reset(self._defaults)
        try:
            with ExitStack() as stack:
                item.stash[_WARNED] = stack.enter_context(warnings.catch_warnings(record=True))
                warnings.simplefilter("always")  # a warning decides no verdict
                for text in _OP_WARNINGS:
                    warnings.filterwarnings("ignore", text)
                if amp:
                    stack.enter_context(self._device[case.device].activate())
                if amp and case.executor:
                    stack.enter_context(simulate_cuda(self._device[case.device]))
                    stack.enter_context(quiet())
                try:
                    yield
                except Exception as error:
                    if amp and case.suite in ("eager", "autograd") and not isinstance(error, _JUDGED):
                        _again(_function(item), amp, error)
                    raise
            if amp:
                amp.finish()
        finally:
            reset(self._defaults)

    # ---- judging

    def judge(self, item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
        """Turn pytest's outcome of a case into a status, and put the result on the report."""
        failed = call.excinfo is not None
        if report.when != "call" and not failed:
            return
        case = item.stash[_CASE]
        status, message, differences = "pass", "", []
        if call.excinfo is not None:
            status, message = status_of(call.excinfo, report.when or "call")
            differences = _differences(call.excinfo.value)
            if noted := _noted(item, differences):  # before the case raised something else
                status = "fail" if status in ("broken", "unsupported") else status
                message = "\n".join([*noted, message])
                differences = [*noted, *differences]
        shown, why, entries = self._after_deviations(status, message, differences, case)
        details = {}
        if shown != "pass":
            details = self.details(item, message or why)
        if shown in RED:
            error = raised(call.excinfo) if call.excinfo is not None else None
            op = (
                case.op if case.op in samples.catalogue() or case.op in op_database.rows() else ""
            )  # else a scenario's name
            details["cause"] = causes.text(shown, message or why, case.rule, op, error)
            details["traceback"] = causes.trimmed(error) if error is not None else ""
        result = Result(
            **case.fields(),
            status=shown,
            seconds=round(call.duration, 5),
            deviation=", ".join(entry.id for entry in entries),
            warnings=_texts(item.stash.get(_WARNED, [])),
            **details,
        )
        report.ampcheck = result.filled()  # type: ignore[attr-defined]  # travels from xdist's workers with the report
        if result.cause:  # pytest writes it into its own JUnit file
            item.user_properties.append(("cause", result.cause))
        mark(report, shown, why, summary.text(result, why))

    def _after_deviations(
        self, status: str, message: str, differences: list[str], case: Case
    ) -> tuple[str, str, tuple[Deviation, ...]]:
        """Return the status after deviations, the reason to show for it, and the deviations it is about."""
        if status == "unsupported":
            return status, message, ()
        return after_deviations(
            status, differences, [] if self.without_deviations else self.deviations.of(case.device, case.name)
        )

    def details(self, item: pytest.Item, message: str) -> dict[str, str]:
        """The fields of a result that say what happened to a case and how to reproduce it.

        `message`: "" for a case that ended its process; then nothing of it is run here.
        """
        case = item.stash[_CASE]
        device = self._device[case.device]
        node = item.nodeid
        root = item.config.rootpath
        # Elsewhere no conftest.py loads the plugin, and what the node id is relative to is another folder.
        away = root != item.config.invocation_params.dir or (self._root is not None and self._root.parent != root)
        if away:
            node = f"{item.path}{node[node.index('::') :]}"
        line = reproduce.pytest_line(node, device, self.modules, installed=away, further=self._further)
        try:
            program = self._in_plain_torch(_function(item), case, device, message)
        except Exception as error:  # a result must not be lost because its reproduction cannot be written
            program = f"# This reproduction could not be written: {one_line(error)}"
        return {"node": item.nodeid, "message": message, "pytest": line, "torch": program}

    def _in_plain_torch(self, function: pytest.Function, case: Case, device: Device, message: str) -> str:
        """A case as a program that imports no ampcheck."""
        if case.sample == op_database.SAMPLE:
            return reproduce.of_op_database(case, device, message)
        if case.op in samples.catalogue() and case.executor:
            return reproduce.of_compiled(case, device, message, self.modules)
        if case.inputs.endswith(GRADIENT):
            return reproduce.of_gradient(case, device, message, self.modules, ran=bool(message))
        if case.op in samples.catalogue() and case.rule != "drift":
            return reproduce.of_op(case, device, message, self.modules, ran=bool(message))
        if script := getattr(function.funcargs.get("amp"), "script", ""):
            return str(script)
        given = {name: value for name, value in function.callspec.params.items() if name != "amp"}
        return reproduce.of_scenario(
            function.function, device, DTYPES[case.amp], given, self.modules, ran=bool(message)
        )


def _suite(path: Path) -> Path:
    """The folder of the suite that a file is in, perhaps in a folder of that one."""
    return next((folder for folder in path.parents if folder.parent.name == "suites"), path.parent)


def _rule(definition: Any, marker: Any) -> str:
    """The rule of a suite function: that of its op cases, or what the marker `rule` of its file says.

    Raises pytest.UsageError where a scenario has none.
    """
    if marker.name != "op_cases":
        marker = definition.get_closest_marker("rule")
    if marker is None:
        raise pytest.UsageError(
            f"{definition.nodeid} is of no rule: its file needs pytestmark = pytest.mark.rule(NAME)"
        )
    return str(marker.args[0])


def _function(item: pytest.Item) -> pytest.Function:
    """An item that is a case, by its class."""
    assert isinstance(item, pytest.Function)
    return item


_JUDGED = (CheckFailure, Unsupported, AssertionError)
"""Exceptions that say of themselves what they mean."""


def _again(item: pytest.Function, amp: Amp, error: Exception) -> None:
    """Run a scenario that raised on a backend once more, there and on the CPU, with regions that do nothing.

    Raises Broken, or Unsupported, as `Amp.refused` does, where the backend alone raises the same then.
    """
    if amp.type == "cpu" or not amp.device.has_values:
        return
    off: Any = {"__init__": lambda self, *_, **__: None, "__enter__": lambda self: self, "__exit__": lambda *_: None}

    def outside(device: Device) -> Exception | None:
        given = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
        reset({device.type: device.default_amp})
        region = patch.object(
            device, "autocast", lambda *_, **__: torch.autocast(device.type)
        )  # it may be another class
        try:
            with patch.multiple(torch.autocast, **off), region:
                item.obj(**{**given, "amp": Amp(device, name_of(amp.dtype))})
        except Exception as raised:
            return raised
        return None

    same = outside(amp.device)
    if type(same) is type(error) and str(same) == str(error) and outside(known()["cpu"]) is None:
        amp.refused(error, "it")


def _differences(error: BaseException) -> list[str]:
    """Return each thing that was not as promised; an exception is one, with its whole text."""
    return error.differences if isinstance(error, CheckFailure) else [f"{type(error).__name__}: {error}"]


def _noted(item: pytest.Item, differences: list[str]) -> list[str]:
    """Return the differences that a scenario had noted before it raised something else."""
    amp = _function(item).funcargs.get("amp")
    return [text for text in amp.differences if text not in differences] if isinstance(amp, Amp) else []


def _further(option: Any) -> list[str]:
    """The options that a line which reproduces one case has to repeat."""
    if not option.nightly:
        return []
    seed = getattr(option, "hypothesis_seed", None)
    return ["--nightly", *([f"--hypothesis-seed={seed}"] if seed is not None else [])]


def _chosen(names: list[str], known: Any, what: str) -> frozenset[str]:
    for name in names:
        if name not in known:
            from difflib import get_close_matches

            close = get_close_matches(name, list(known), 3)
            hint = f"; did you mean {', '.join(close)}?" if close else ""
            raise UsageError(f"there is no {what} named {name!r}{hint}")
    return frozenset(names)


def _suits(device: Device, types: tuple[str, ...], values: bool, dtypes: str, since: str) -> bool:
    promised = not since or Version(torch.__version__) >= Version(since)
    return promised and (not types or device.type in types) and (device.has_values or not values)


def _texts(warned: list[warnings.WarningMessage]) -> str:
    """Each warning of a case once, a line each."""
    lines = (f"{w.category.__name__}: {' '.join(str(w.message).split())}" for w in warned)
    return "\n".join(dict.fromkeys(lines))
