"""Collect the cases of each suite file on the chosen devices, choose those that run, and say so in a header."""

import json
import os
import platform
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
from packaging.version import Version

from ampcheck import samples
from ampcheck.checks.cases import cell_cases, compiled_cases, compilers, database_cases, op_cases, smoke
from ampcheck.checks.product import Product, covering, label
from ampcheck.devices.base import Device
from ampcheck.devices.registry import absent, known, select, warned
from ampcheck.errors import UsageError, unknown
from ampcheck.observe.dispatcher import live_drift
from ampcheck.runner import record as records
from ampcheck.runner.deviations import JIT, KERNELS, SHARED, KnownDeviations
from ampcheck.samples import op_database
from ampcheck.spec.case import COMPILERS, RULES, Case, Shard, check_key
from ampcheck.spec.casting import LOW

CASE = pytest.StashKey[Case]()

NOTES = pytest.StashKey[list[str]]()
"""What the preflight of the devices found that does not end the run, a sentence each."""
TESTED = pytest.StashKey[Collection[str]]()
"""The names of the devices of all processes of a run."""
_SHOWN = 5

Found = Mapping[str, Mapping[str, str]]
"""The cases of a run by key: the fields of each that are known before it runs, its `node` among them."""


class Choice:
    """The cases that `--shard` and `--red-in` leave in a run; every case where neither is given.

    Raises UsageError for a malformed shard, and for a run file that cannot be read or has no red case.
    """

    def __init__(self, option: Any) -> None:
        self._shard = Shard.parse(option.shard) if option.shard is not None else None
        self._file: Path | None = option.red_in
        self._red: frozenset[str] | None = None
        if self._file is not None:
            results = records.read(self._file).results.values()
            self._red = frozenset(result.key for result in results if result.status in records.RED)
            if not self._red:
                raise UsageError(f"the run file {self._file} has no red case, so there is none to run again")

    def has(self, key: str) -> bool:
        """Return whether a case is to run."""
        return (self._shard is None or self._shard.has(key)) and (self._red is None or key in self._red)

    def gone(self, found: Collection[str]) -> list[str]:
        """Return the red cases of the run file that are not among those found."""
        return sorted(key for key in self._red or () if self.has(key) and key not in found)


class Collector:
    """The cases of one run, and the devices, options and deviations they are made by.

    Raises UsageError for an option that names something unknown.
    """

    def __init__(self, config: pytest.Config, names: Sequence[str] = ()) -> None:
        """Begin a run on the devices of those names; by default on those of the options."""
        option = config.option
        if option.smoke and option.nightly:
            raise UsageError("--smoke and --nightly exclude each other: one runs a few cases, the other more than all")
        self.modules = tuple(option.device_module)
        self.devices = {device.name: device for device in select(names or option.device, self.modules)}
        self.deviations = KnownDeviations(
            self.devices.values(), option.deviations, tuple(known(self.modules)), baseline=option.baseline
        )
        self.choice = Choice(option)
        self.chosen: tuple[int, int] | None = None
        """How many cases a smoke run chose of how many; None for another run."""
        self.root: Path | None = None
        """The folder of the suites, once a file of one is collected."""
        self._nightly = bool(option.nightly)
        self._smoke = bool(option.smoke)
        self._ops = _chosen(option.op, {**samples.catalogue(), **op_database.rows()}, "op")
        self._rules = _chosen(option.rule, RULES, "rule")
        self._dtypes = _chosen(option.amp_dtype, LOW, "region dtype")
        self._compilers = _chosen(option.compiler, COMPILERS, "compiler")
        self._device_option = bool(option.device)
        self._config = config
        self._arguments = [config.invocation_params.dir / str(argument) for argument in config.args]
        self._names: list[str] = []
        """The cases of this run and of a nightly one, as deviations call them."""
        self._nodes: dict[str, str] = {}
        """The node id of each case, by key."""
        self._products: list[tuple[Product, Case, list[tuple[Device, str]]]] = []
        """The products of which a nightly run takes more cells, each with a case without cell, device and dtype, and
        the devices and dtypes."""

    # ---- making cases
    def generate(self, metafunc: pytest.Metafunc, marker: pytest.Mark) -> None:
        """Parametrize a suite function over its cases on the chosen devices."""
        rule = _rule(metafunc.definition, marker)
        suite = _suite(Path(metafunc.module.__file__ or "").resolve())
        self.root = suite.parent
        devices = self.devices.values()
        if self._rules and rule not in self._rules:
            metafunc.parametrize("case" if marker.name == "op_cases" else "amp", [])
        elif marker.name == "op_cases":
            pairs = [(case, d) for d in devices for case in self._cases(d, suite.name, marker) if self._wanted(case)]
            metafunc.parametrize(("case", "device"), pairs, ids=[case.id for case, _ in pairs])
        else:
            amps = [
                (device, dtype)
                for device in devices
                if _suits(device, **marker.kwargs)
                for dtype in (device.amp_dtypes if marker.kwargs["dtypes"] == "all" else (device.default_amp,))
                if (not self._dtypes or dtype in self._dtypes) and not self._ops
            ]
            product = metafunc.definition.get_closest_marker("product")
            if product is not None:
                self._take_cells(metafunc, product.args[0], rule, suite.name, amps)
            metafunc.parametrize("amp", amps, ids=[f"{dtype}-{device.token}" for device, dtype in amps], indirect=False)

    def _take_cells(
        self, metafunc: pytest.Metafunc, product: Product, rule: str, suite: str, amps: list[tuple[Device, str]]
    ) -> None:
        """Parametrize a scenario over the cells of a product: those of each run, or all of them in a nightly one."""
        names = list(product.dimensions)
        # Of a scenario that other options leave out, no cell is chosen, which takes long for a large product.
        cells = [] if not amps else product.reachable if self._nightly else product.chosen
        metafunc.parametrize(names, cells, ids=[label(cell) for cell in cells])
        scenario = metafunc.function.__name__.removeprefix("test_")
        if not self._nightly:
            self._products.append((product, Case(suite, rule, scenario, "", "", "", "", ""), amps))

    def _nightly_cells(self) -> Iterator[str]:
        """Yield what deviations call the cells of products that a nightly run takes."""
        for product, case, amps in self._products:
            for cell in product.reachable:
                compiler = dict(zip(product.dimensions, cell, strict=True)).get("compiler", "")
                inputs = label(tuple(value for value in cell if value != compiler))
                for device, amp in amps:
                    about = {"device": device.name, "token": device.token, "compiler": compiler}
                    yield replace(case, inputs=inputs, amp=amp, **about).name

    def _cases(self, device: Device, suite: str, marker: pytest.Mark) -> Iterator[Case]:
        if self._nightly and suite != "autograd":
            yield from cell_cases(device, marker.args[0], suite)
        if marker.kwargs.get("compiled"):
            yield from compiled_cases(device, marker.args[0], suite, nightly=self._nightly)
            return
        yield from op_cases(device, marker.args[0], suite)
        if marker.kwargs.get("database") and (device.database or self._nightly):
            yield from database_cases(device, suite)

    def _wanted(self, case: Case) -> bool:
        chosen = ((self._ops, case.op), (self._dtypes, case.amp), (self._compilers, case.compiler))
        return all(not names or value in names for names, value in chosen)

    def collected(self, item: pytest.Item) -> None:
        """Remember the case that a collected item runs."""
        assert isinstance(item, pytest.Function)
        function = item
        params: dict[str, Any] = function.callspec.params
        if isinstance(params.get("case"), Case):
            case = params["case"]
        elif isinstance(params.get("amp"), tuple):
            device, dtype = params["amp"]
            name = function.originalname.removeprefix("test_")
            compiler = str(params.get("compiler", ""))
            # pytest's label for the parameters of the scenario, of which the compiler is a field of the case.
            label = function.callspec.id.removesuffix(f"{dtype}-{device.token}").rstrip("-")
            variant = "-".join(word for word in label.split("-") if word != compiler)
            rule = _rule(item, item.get_closest_marker("scenario"))
            case = Case(_suite(item.path).name, rule, name, "", variant, dtype, device.name, device.token, compiler)
        else:
            return
        if self._nodes.setdefault(case.key, item.nodeid) != item.nodeid:
            raise UsageError(f"{item.nodeid} and {self._nodes[case.key]} are both {case.key}")
        item.stash[CASE] = case
        item.extra_keyword_matches.add(case.rule)  # for -k, whatever the file is called

    @staticmethod
    def case_of(item: pytest.Item) -> tuple[pytest.Function, Case] | None:
        """Return a collected item by its class, and the case that it runs; None for an item that is no case."""
        case = item.stash.get(CASE, None)
        return (item, case) if case is not None and isinstance(item, pytest.Function) else None

    def found(self, items: list[pytest.Item]) -> dict[str, dict[str, str]]:
        """Return the fields of items that are cases, by key; see `Found`."""
        return {item.stash[CASE].key: {**item.stash[CASE].fields(), "node": item.nodeid} for item in items}

    # ---- choosing cases
    def drop_empty(self, items: list[pytest.Item]) -> None:
        """Leave out the placeholders pytest makes for a function without cases: absent is not skipped."""
        made = [item for item in items if "NOTSET" not in item.nodeid]
        items[:] = [item for item in made if self._taken(item, self._nightly)]
        self._names = [
            item.stash[CASE].name
            for item in made
            if CASE in item.stash and any(self._taken(item, nightly) for nightly in {self._nightly, True})
        ]

    def choose(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Take the cases that a smoke run leaves out of `items` and return them; in another run, those of devices of
        which a share runs. A run that does not name a device which is tested on request has its smoke cases, and one
        that chooses nothing takes one region dtype of devices that say so.
        """
        every = [item for item in items if CASE in item.stash]
        cases = [item for item in every if self._smoke or self._share(item.stash[CASE]) != 1]
        chosen = zip(cases, smoke([item.stash[CASE] for item in cases]), strict=True) if cases else ()
        out = {item for item, keep in chosen if not keep and not self._in_share(item.stash[CASE])}
        if self._smoke:
            self.chosen = len(cases) - len(out), len(cases)
        elif not (
            self._device_option or self._nightly or self._config.option.red_in or chooses(self._config, self.root)
        ):
            out |= self._twins(every)
        items[:] = [item for item in items if item not in out]
        return [item for item in every if item in out]

    def _twins(self, items: Sequence[pytest.Item]) -> set[pytest.Item]:
        """Return the cases that a run which chooses nothing leaves out, as others hold their values; see `_values`."""
        groups: dict[Hashable, dict[pytest.Item, tuple[Hashable, ...]]] = defaultdict(dict)
        mixed = sorted(items, key=lambda item: crc32(item.stash[CASE].key.encode()))  # each dtype comes first at times
        for item in mixed:
            if values := self._values(item):
                group, *held = values
                groups[group][item] = tuple(held)
        return {item for group in groups.values() for item in group.keys() - set(covering(group))}

    def _values(self, item: pytest.Item) -> tuple[Hashable, ...]:
        """Return the group of a case and the values of which a run that chooses nothing takes each once in the group;
        nothing for a case that every run takes.

        An op and its inputs, and what forks, have one region dtype; what is compiled has one dtype of inputs, too. A
        device of `one_region_dtype` has a further sample of an op in one dtype of its inputs, and each value of a
        scenario's parameters. Devices without values are one group, but for eager ops: they compute by the same code.
        """
        case = item.stash[CASE]
        device, scenario = self.devices[case.device], item.get_closest_marker("scenario") is not None
        if scenario and not (device.one_region_dtype or item.get_closest_marker("forks")):
            return ()
        inputs = case.inputs.replace(case.amp, "low").replace(LOW[case.amp == LOW[0]], "other")
        whole: tuple[Hashable, ...] = ((case.sample, inputs, case.compiler),)
        if case.compiler and not scenario:
            whole = (case.sample, case.compiler), inputs
        elif scenario and device.one_region_dtype and device.has_values:
            assert isinstance(item, pytest.Function)
            whole = tuple((name, str(value)) for name, value in item.callspec.params.items() if name != "amp")
        elif not scenario and device.one_region_dtype and case.sample not in ("", op_database.SAMPLE):
            whole = (case.sample, (inputs,))
        together = not device.has_values and (scenario or case.suite != "eager")
        place = type(device).__name__ if together else device.name
        return (case.suite, case.rule, case.op, place), *whole, *([case.amp] if whole else []), case.device

    def _share(self, case: Case) -> int:
        """Return of how many cases of a device one runs beside those of a smoke run; 0 for none."""
        device = self.devices[case.device]
        if device.on_request and not self._device_option:
            return 0
        return 1 if self._device_option or self._nightly else device.share

    def _in_share(self, case: Case) -> bool:
        share = self._share(case)
        return not self._smoke and bool(share) and crc32(case.key.encode()) % share == 0

    def left_out(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Return the cases among some items that another shard runs, or that were not red."""
        return [item for item in items if CASE in item.stash and not self.choice.has(item.stash[CASE].key)]

    def _taken(self, item: pytest.Item, nightly: bool) -> bool:
        """Return whether a run has an item: of a chosen compiler that takes its device's programs, and not too slow."""
        case = item.stash.get(CASE, None)
        if case is None:
            return True
        if not nightly and item.get_closest_marker("nightly"):
            return False
        scenario = item.get_closest_marker("scenario")
        if scenario is not None and scenario.kwargs["database"] and not (nightly or self.devices[case.device].database):
            return False
        if case.suite != "jit" and not self._compilers:
            return True
        runs = compilers(self.devices[case.device], nightly=nightly)
        if not case.compiler and not self._compilers:
            return bool(runs)
        return case.compiler in runs and (not self._compilers or case.compiler in self._compilers)

    def stale(self) -> dict[str, list[str]]:
        """Return what `KnownDeviations.stale` does; nothing unless every case was collected."""
        everything = self.root is not None and any(self.root.is_relative_to(a.resolve()) for a in self._arguments)
        if self._ops or self._rules or self._dtypes or self._compilers or self._smoke or not everything:
            return {}
        others = [device for name, device in known(self.modules).items() if name not in self.devices]
        files = [device.deviations for device in others if device.deviations]
        devices = self.devices.values()
        nightly = [c.name for d in devices if not d.database for c in database_cases(d)]
        nightly += [c.name for d in devices for rule in RULES for c in compiled_cases(d, rule, nightly=True)]
        nightly += [c.name for d in devices for rule in RULES for s in ("eager", "jit") for c in cell_cases(d, rule, s)]
        unjudged = [*files, SHARED, JIT, KERNELS] if self._device_option else files
        tokens = [known(self.modules)[name].token for name in absent(self.modules, self.devices)]
        return self.deviations.stale([*self._names, *self._nightly_cells(), *nightly], unjudged=unjudged, absent=tokens)


def _suite(path: Path) -> Path:
    """Return the folder of the suite that a file is in, perhaps in a folder of that one."""
    return next((folder for folder in path.parents if folder.parent.name == "suites"), path.parent)


def _rule(definition: Any, marker: Any) -> str:
    """Return the rule of a suite function: that of its op cases, or what the marker `rule` of its file says.

    Raises pytest.UsageError for a scenario without one.
    """
    if marker.name != "op_cases":
        marker = definition.get_closest_marker("rule")
    if marker is None:
        raise pytest.UsageError(f"{definition.nodeid} has no rule: its file needs pytestmark = pytest.mark.rule(NAME)")
    return str(marker.args[0])


def _chosen(names: list[str], known: Collection[str], what: str) -> frozenset[str]:
    for name in names:
        if name not in known:
            raise unknown(what, name, known)
    return frozenset(names)


def _suits(device: Device, types: tuple[str, ...], values: bool, since: str, **_: object) -> bool:
    promised = not since or Version(torch.__version__) >= Version(since)
    return promised and (not types or device.type in types) and (device.has_values or not values)


# ---- the header of a run
def chooses(config: pytest.Config, root: Path | None) -> bool:
    """Return whether options choose some cases by what they are, of those in the folder of the suites."""
    option, names = config.option, ("op", "rule", "amp_dtype", "compiler", "keyword", "smoke")
    return any(getattr(option, name) for name in names) or [Path(argument) for argument in config.args] != [root]


def header_lines(config: pytest.Config) -> list[str]:
    """Return torch, the devices tested, and why others are not. Raises UsageError for an unknown device."""
    option, tested = config.option, config.stash.get(TESTED, [])
    devices = list(dict.fromkeys(option.device)) or tested or [d.name for d in select((), option.device_module)]
    lines = [f"torch {records.versions().get('torch', '?')}; devices: {', '.join(devices)}"]
    if option.shard is not None:
        lines[0] += f"; shard {Shard.parse(option.shard)}"
    if not option.device:
        lines += [f"without {name}: {reason}" for name, reason in absent(option.device_module, tested).items()]
    if not op_database.rows():
        lines.append(f"no list of the op database for torch {torch.__version__}: rule fallthrough runs without it")
    found = live_drift()
    lines += [f"drift: {line}" for line in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"drift: {len(found) - _SHOWN} more in the run file")
    return lines


def notes(config: pytest.Config) -> list[str]:
    """Return what the preflight of the devices found, and what their backends warned of as they were loaded."""
    return [*config.stash.get(NOTES, []), *warned()]


def header(config: pytest.Config, devices: Iterable[Device], cases: Iterable[str], now: datetime) -> dict[str, Any]:
    """Return the header of a run file for the cases of those keys on some devices."""
    option, named = config.option, platform.uname()
    cases = list(cases)
    return {
        "started": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "command": ["pytest", *config.invocation_params.args],
        "manifest": records.manifest_hash(cases),
        "cases": len(cases),
        **({"shard": str(Shard.parse(option.shard))} if option.shard is not None else {}),
        "seed": records.seed_of_programs(option.nightly, getattr(option, "hypothesis_seed", None)),
        "nightly": bool(option.nightly),
        "smoke": bool(option.smoke),
        "versions": records.versions(),
        "devices": [
            {"name": d.name, "token": d.token, "type": d.type, "key": d.key, "has_values": d.has_values, **d.describe()}
            for d in devices
        ],
        "absent": absent(option.device_module, config.stash.get(TESTED, [])),
        "preflight": config.stash.get(NOTES, []),
        "drift": live_drift(),
        "machine": {
            "system": named.system,
            "release": named.release,
            "machine": named.machine,
            "cores": os.cpu_count(),
        },
    }


def check_files(config: pytest.Config) -> None:
    """Raise UsageError for a manifest that cannot be used, or a run file that is there already."""
    option = config.option
    if option.manifest:
        _read_manifest(option.manifest)
    if option.run_file and option.run_file.exists():
        raise UsageError(f"the run file {option.run_file} cannot be written: File exists")
    if option.run_file:
        records.output_file(option.run_file, "run file", folders=True)
    if option.write_manifest:
        records.output_file(option.write_manifest, "manifest")


# ---- manifests
def manifest(found: Found) -> str:
    """Return the text of a manifest: a line for each case, sorted, with its key, a tab, and its fields as JSON."""
    lines = []
    for key in sorted(found):
        case = {name: text for name, text in found[key].items() if name not in ("suite", "rule", "id", "node")}
        lines.append(f"{key}\t{json.dumps(case)}\n")
    return "".join(lines)


def expected(config: pytest.Config, found: Found, choice: Choice) -> Found:
    """Return the cases that must run: those collected, and those of the manifest.

    Of the manifest, the cases that `choice` leaves out are not expected.
    """
    if not config.option.manifest:
        return dict(found)
    listed = _read_manifest(config.option.manifest)
    return {**{key: case for key, case in listed.items() if choice.has(key)}, **found}


def _read_manifest(path: Path) -> dict[str, dict[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the manifest {path} cannot be read: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        key, _, fields = line.partition("\t")
        if not key:
            continue
        named = dict(zip(("suite", "rule", "id"), check_key(key).split("/"), strict=True))
        try:
            found[key] = {**named, **{records.renamed(k): v for k, v in json.loads(fields or "{}").items()}}
            records.unmeasured(found[key], "missing")
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"the manifest {path}, line {number}: {fields!r} are no fields of a case: {error}"
            ) from error
    return found
