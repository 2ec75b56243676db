"""Deviations: what an entry or a baseline excuses, on which devices, and what this package's own files say.

Malformed files are in test_bad_input.py.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
import torch

from ampcheck.devices.base import Device
from ampcheck.devices.registry import OWN, groups, known, select
from ampcheck.errors import UsageError
from ampcheck.observe.dispatcher import compiled
from ampcheck.runner import deviations
from ampcheck.runner.deviations import (
    JIT,
    KERNELS,
    SHARED,
    Deviation,
    KnownDeviations,
    after_deviations,
    as_baseline,
    load,
)
from ampcheck.runner.record import RED, Result, Run, read
from ampcheck.runner.summarize import RunRecorder, stale_lines
from ampcheck.spec.case import deviation_name
from scripts.findings import OUTSIDE, Finding
from scripts.findings import load as load_findings
from tests.cli_support import ENTRY, collected, ended, pytest_here, toml, write_suites
from tests.report.made_runs import make

SECTIONS = {one.id: one for one in load_findings() if one.area != OUTSIDE}
FILES = list(dict.fromkeys([SHARED, JIT, KERNELS, *(d.deviations for d in known().values() if d.deviations)]))
DEVIATIONS = [deviation for path in FILES for deviation in load(path, tuple(known()))]
OF_EVERY_TORCH = [
    replace(DEVIATIONS[0], id=entry["id"], cases=tuple(entry["cases"]))
    for path in FILES
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["deviation"]
]

_LINK = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+|unreported|.*/docs/using\.md#[\w-]+")
_CASE = re.compile(r"\*\*Case\.\*\*\s(?P<text>.*?)(?=\*\*Upstream\.\*\*|\Z)", re.DOTALL)


def finding_of(deviation: Deviation) -> str:
    """The finding of an entry, which entries NAME and NAME/PART share."""
    return deviation.id.partition("/")[0]


def wrong_cases(deviations: Iterable[Deviation], sections: Mapping[str, Finding]) -> list[str]:
    """A sentence for each section that names a case of another deviation than its own, or of none.

    A finding that no case notices says so, and why.
    """
    own: dict[str, set[str]] = {}
    for deviation in deviations:
        own.setdefault(finding_of(deviation), set()).update(deviation.cases)
    everybody = set().union(*own.values())
    out = []
    for name, finding in sections.items():
        match = _CASE.search(finding.body)
        text = match["text"] if match else ""
        named = set(re.findall(r"`(\w+/[^`]+)`", text))
        if name not in own:
            if not text.startswith("none;"):
                out.append(f"{name} is no deviation, and does not say why no case shows it")
        elif not named & own[name]:
            out.append(f"{name} names no case of its deviation")
        elif missing := named - everybody:
            out.append(f"{name} names {', '.join(sorted(missing))}, which no deviation does")
    return out


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What deviations call every case of this machine's devices, those of nightly runs among them."""
    together = [[f"--device={name}" for name in group] for group in groups(())]
    found = [collected(tmp_path_factory.mktemp("manifest"), "--nightly", *devices) for devices in together]
    return [
        deviation_name(*key.split("/"), fields.get("compiler", "")) for cases in found for key, fields in cases.items()
    ]


def test_every_file_loads() -> None:
    assert len(FILES) >= 5
    assert len(DEVIATIONS) >= 20
    KnownDeviations(known().values())  # no two files of one device have the same id


@pytest.mark.nightly
def test_no_glob_is_stale(names: list[str]) -> None:
    assert len(names) > 1000
    deviations = KnownDeviations(device for group in groups(()) for device in select(group))
    assert stale_lines([deviations.stale(names)]) == []
    rest = [name for name in names if not name.startswith("nesting/one_object_around_another-")]
    assert any("'nesting/one_object_around_another-*'" in line for line in stale_lines([deviations.stale(rest)]))


def test_every_link_is_of_a_report_and_every_unreported_entry_has_its_page() -> None:
    assert [deviation.id for deviation in DEVIATIONS if not _LINK.fullmatch(deviation.link)] == []
    assert {finding_of(deviation) for deviation in DEVIATIONS if deviation.link == "unreported"} <= set(SECTIONS)


def test_every_page_names_cases_of_its_deviation() -> None:
    assert wrong_cases(OF_EVERY_TORCH, SECTIONS) == []


def test_no_glob_is_negated() -> None:
    """`[!c]*` leaves out no device: a star before it reaches past the dash."""
    assert [d.id for d in DEVIATIONS if any("[!" in glob for glob in (*d.cases, *d.but))] == []


def test_every_library_is_known() -> None:
    asked = {re.split(r"[^\w-]", text)[0] for text in requires("ampcheck") or ()}
    assert {name for d in DEVIATIONS for name, _ in d.libraries} <= asked
    assert any(d.libraries for d in DEVIATIONS)


# ---- what an entry excuses


def entry(name: str = "one", raises: str = "first", **fields: Any) -> Deviation:
    """An entry for every case of rule state."""
    about = {"cases": ("state/*",), "kind": "deviation", "reason": f"Because of {name}.", "link": "unreported"}
    return Deviation(**{"id": name, "raises": raises, "torch": ">=2.11", "added": "2026-11-22", **about, **fields})


TABLE = tomllib.loads(Path(__file__).with_name("excused.toml").read_text(encoding="utf-8"))
STATE = {**ENTRY, "cases": ["state/*"]}
FIRST, SECOND = entry(), entry("two", "second")
ENTRIES = {"first": FIRST, "second": SECOND, "inherited": replace(SECOND, inherited=True)}
ENTRIES |= {"lacks": entry("lack", "no kernel", kind="unsupported")}
ENTRIES |= {kind: replace(FIRST, kind=kind) for kind in ("fault", "flaky")}


@pytest.mark.parametrize(("status", "differences", "entries", "shown", "about"), TABLE["judged"])
def test_a_case_is_excused_where_each_difference_is_described(
    status: str, differences: list[str], entries: list[str], shown: str, about: str
) -> None:
    found, why, named = after_deviations(status, differences, [ENTRIES[name] for name in entries])
    assert (found, ", ".join(entry.id for entry in named)) == (shown, about)
    if shown in ("deviation", "unsupported"):
        assert why == " ".join(f"{entry.reason} unreported" for entry in named)


@pytest.mark.parametrize(("raises", "difference", "explains"), TABLE["explained"])
def test_an_entry_names_dtypes_and_the_largest_amount(raises: str, difference: str, explains: bool) -> None:
    one = entry(raises=raises, most=(("off", 0.02),) if "off" in raises else ()).in_region("fp16")
    assert one.explains(difference) is explains


def test_an_amount_that_is_too_large_is_told_with_its_bound() -> None:
    one = entry(raises=r"differs by (?P<off>\S+);", most=(("off", 0.02),))
    _, why, _ = after_deviations("fail", ["x: differs by 3;"], [one])
    assert why.endswith("describes: x: differs by 3; (deviation 'one': at most off = 0.02)")


def test_what_no_entry_describes_is_named() -> None:
    _, why, _ = after_deviations("fail", ["first", "second: got 2"], [FIRST])
    assert why == "no deviation of this case ('one') describes: second: got 2"
    _, why, _ = after_deviations("fail", ["first"], [FIRST, replace(SECOND, file="a.toml")])
    assert why == "deviation 'two' is stale: the case fails in other ways alone (a.toml)"
    _, why, _ = after_deviations("pass", [], [replace(FIRST, file="a.toml")])
    assert why == "deviation 'one' is stale: the case passes now (a.toml)"


NAMES = ["two", "noted_before_it_raised", "noted_before_it_was_unsupported", "many_lines"]


@pytest.mark.parametrize(
    ("raises", "statuses"),
    [
        ("first", ["fail", "fail", "fail", "deviation"]),
        ("second", ["fail", "fail", "fail", "fail"]),
        ("first|second", ["deviation", "deviation", "deviation", "deviation"]),
    ],
)
def test_a_run_holds_every_difference_against_the_entries(tmp_path: Path, raises: str, statuses: list[str]) -> None:
    write_suites(tmp_path, {"eager/test_state.py": TABLE["suites"]["two"]})
    (tmp_path / "mine.toml").write_text(toml({**STATE, "raises": raises}), encoding="utf-8")
    _, said = pytest_here(tmp_path, "suites", "--device=cpu", "--deviations=mine.toml", "--run-file=run.jsonl")
    found = {result.op: result for result in read(tmp_path / "run.jsonl").results.values()}
    assert [found[name].status for name in NAMES] == statuses, said
    assert "first: got 1; expected 2" in found["noted_before_it_raised"].message
    assert "ValueError: second" in found["noted_before_it_raised"].message


# ---- each result that deviates, changed


def changed(*options: str) -> tuple[int, str]:
    """Return the exit code of `python -m scripts.deviations`, and what it printed."""
    done = ended([sys.executable, "-m", "scripts.deviations", *options])
    return done.returncode, done.stdout + done.stderr


def test_changed_results_are_excused_by_no_entry() -> None:
    rules = [f"--rule={rule}" for rule in ("autodiff", "nesting", "unscale", "threads")]
    code, said = changed("--device=cpu", "--most=1", *rules)
    assert code == 0, said
    assert "backward-in-a-region: 1 cases, 4 changed results are red" in said
    assert re.search(r"^\d+ entries, 0 to mend$", said, re.MULTILINE)


EXACT = r"^a value: differs by (?P<off>\S+);|^a dtype: got torch\.float64;|^ValueError: what it says$"


@pytest.mark.parametrize(
    ("raises", "most", "excused"),
    [
        (EXACT, 0.05, []),
        pytest.param(EXACT, 5, ["assert_close, value"], marks=pytest.mark.nightly),
        pytest.param(EXACT.replace(r"torch\.float64", ".*"), 0.05, ["assert_equal, dtype"], marks=pytest.mark.nightly),
        pytest.param(EXACT.replace("^ValueError: what", "what"), 0.05, ["exception, error"], marks=pytest.mark.nightly),
        pytest.param(EXACT.replace("what it says$", ""), 0.05, ["exception, text"], marks=pytest.mark.nightly),
    ],
    ids=["exact", "amount", "dtype", "class", "text"],
)
def test_an_entry_that_is_too_wide_is_named(raises: str, most: float, excused: list[str], tmp_path: Path) -> None:
    write_suites(tmp_path, {"eager/test_off.py": TABLE["suites"]["off"]})
    (tmp_path / "mine.toml").write_text(toml({**STATE, "raises": raises}) + f"most = {{ off = {most} }}\n")
    code, said = changed("--device=cpu", f"--deviations={tmp_path / 'mine.toml'}", str(tmp_path / "suites"))
    assert re.findall(r"^    eager/state/off-bf16-cpu: (\w+, \w+):", said, re.MULTILINE) == excused, said
    assert code == (1 if excused else 0)


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["cpu", "virtual:cuda", "virtual:mps", "virtual:mtia"])
def test_no_entry_excuses_a_changed_result(device: str) -> None:
    code, said = changed(f"--device={device}", "--most=4")
    assert code == 0, said


# ---- the cases, devices and conditions of an entry


def ids(found: Iterable[Deviation]) -> list[str]:
    return [one.id for one in found]


def test_an_entry_speaks_of_its_cases_but_those_it_leaves_out() -> None:
    one = entry(cases=("state/a-*", "depth/*"), but=("state/a-fp16-*",))
    names = ["state/a-bf16-cpu", "state/a-fp16-cpu", "state/b-bf16-cpu", "depth/x-fp16-cpu", "jit/state/a-bf16-cpu"]
    assert [one.covers(name) for name in names] == [True, False, False, True, False]


def test_an_entry_is_for_the_devices_it_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(toml({**STATE, "devices": ["cpu", "jax"]}, {**STATE, "id": "two"}), encoding="utf-8")
    deviations = KnownDeviations([known()["cpu"], known()["virtual:xpu"]], [path])
    assert ids(deviations.of("cpu", "state/x-bf16-cpu")) == ["one", "two"]
    assert ids(deviations.of("virtual:xpu", "state/x-fp16-vxp")) == ["two"]
    # A glob is stale where only other devices have cases for it.
    of_xpu, of_cpu = deviations.stale(["state/x-fp16-vxp"]), deviations.stale(["state/x-bf16-cpu"])
    sentence = f"{path}: deviation 'one': no case matches 'state/*'"
    assert sentence in stale_lines([of_xpu])
    assert not [line for line in stale_lines([of_cpu]) if "mine" in line]
    # Processes with other devices judge the same file: one that has a case for the glob is enough.
    assert sentence not in stale_lines([of_xpu, of_cpu])
    assert sentence in stale_lines([of_xpu, {}])


def test_a_glob_of_a_device_that_is_absent_is_not_judged() -> None:
    deviations = KnownDeviations([known()["cpu"]])
    stale = [line for line in stale_lines([deviations.stale([])]) if "-emc'" in line]
    assert stale
    assert not set(stale) & set(stale_lines([deviations.stale([], absent=["emc"])]))


@pytest.mark.parametrize(("condition", "applies"), TABLE["conditions"])
def test_an_entry_applies_where_its_conditions_hold(
    condition: str, applies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deviations, "lacks", lambda op, dtype: (op, dtype) == ("mm", "fp32"))
    path = tmp_path / "mine.toml"
    text = toml(STATE)
    path.write_text((text.replace('torch = ">=2.11"', "") if "torch" in condition else text) + condition)
    assert ids(load(path)) == (["one"] if applies else [])


# ---- what devices of other packages inherit


class Theirs(Device):
    """A PrivateUse1 device of another package."""

    name = token = type = "theirs"
    key = "AutocastPrivateUse1"

    def unavailable(self) -> None:
        return None


class OnCpu(Theirs):
    """One with PyTorch's kernels of the CPU."""

    name = token = "oncpu"
    key = "AutocastCPU"


HOOKS, CACHE = "autodiff/what_a_hook_sees-unkept-fp16-{}", "cache/changed_weight-data-fp16-{}"
TWICE, MIXED = "nesting/one_object_around_another-fp16-{}", "promote/addcmul-bf16-fp16-{}"
FAKE, LISTED = "jit/downcast/conv2d-fp32-traced-fp16-{}", "jit/downcast/einsum-fp32-script-fp16-{}"
COPIED = "holders/overlap-as_class-with-nested-pickled-fp16-{}"
SHARED = "unscale/one_gradient_tensor_for_two-default-fp16-{}"


def inherited(device: Device, case: str) -> list[tuple[str, bool]]:
    """The entries that speak of a case on a device, and whether each is inherited."""
    return [(one.id, one.inherited) for one in KnownDeviations([device]).of(device.name, case.format(device.token))]


@pytest.mark.parametrize("made_of_helpers", [True, False])
def test_third_parties_inherit_what_is_pytorchs(made_of_helpers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deviations, "compiled", lambda key: made_of_helpers)
    assert inherited(Theirs(), HOOKS) == [("cache-setting-not-in-backward-threads", True)]
    assert inherited(Theirs(), TWICE) == [("region-object-entered-twice", True)]
    assert inherited(Theirs(), CACHE) == ([("stale-cached-weight", True)] if made_of_helpers else [])
    assert inherited(Theirs(), MIXED) == ([("promote-mixed-low", True)] if made_of_helpers else [])
    assert inherited(Theirs(), COPIED) == [("region-object-not-copied", True)]
    assert inherited(Theirs(), SHARED) == [("shared-gradient-unscaled-twice", True)]
    assert inherited(OnCpu(), CACHE) == [("stale-cached-weight", True)]
    assert inherited(OnCpu(), HOOKS) == [("cache-setting-not-in-backward-threads", True)]


def test_on_this_packages_devices_pytorchs_entries_are_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deviations, "compiled", lambda key: True)
    assert inherited(known()["cpu"], HOOKS) == []  # it names CUDA and jax
    assert inherited(known()["cpu"], SHARED) == [("shared-gradient-unscaled-twice", False)]
    assert inherited(known()["cpu"], CACHE) == [("stale-cached-weight", False)]
    assert inherited(known()["cuda"], FAKE) == [("trace-of-fake-convolutions", True)]  # as the virtual one
    assert inherited(known()["cuda"], LISTED) == [("script-lower-precision-list", True)]
    assert inherited(known()["jax"], HOOKS) == [("cache-setting-not-in-backward-threads", False)]
    assert inherited(known()["jax"], COPIED) == []
    assert inherited(known()["jax"], CACHE) == []  # its kernels are Python's
    assert set(known()) >= OWN
    assert "theirs" not in OWN


def test_a_third_partys_own_entries_are_strict(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(toml({**STATE, "devices": ["theirs"]}), encoding="utf-8")
    deviations = KnownDeviations([Theirs()], [path])
    assert [(one.id, one.inherited) for one in deviations.of("theirs", "state/x-fp16-theirs")] == [("one", False)]


def test_python_kernels_are_told_from_compiled_ones() -> None:
    assert compiled("AutocastCPU")
    assert compiled("AutocastCUDA")
    assert not compiled("AutocastHPU")
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm", lambda *args: None, "AutocastHPU")
    try:
        assert torch._C._dispatch_get_registrations_for_dispatch_key("AutocastHPU") == ["aten::mm"]
        assert not compiled("AutocastHPU")
    finally:
        library._destroy()


# ---- baselines: written from runs, read back, and what of a run they excuse

MESSAGE = "output 0 of aten::mm is 0.375 away from the float64 result; expected at most 1.2e-05\nthe kernel saw fp32"
CRASH = "the process ended with signal SIGSEGV; it was in bad (x.py:3)"


def result(name: str, status: str = "fail", message: str = MESSAGE) -> Result:
    return make(name, status, message=message)


def judged(path: Path, *results: Result) -> list[Result]:
    """Results as a run with that baseline has them."""
    deviations = KnownDeviations([known()["cpu"]], baseline=path)
    found = []
    for one in results:
        status, _, entries = after_deviations(one.status, [], deviations.baseline(one.key), one.message)
        found.append(replace(one, status=status, deviation=", ".join(entry.id for entry in entries)))
    return found


def written(folder: Path, *results: Result) -> Path:
    path = folder / "baseline.toml"
    run = Run(Path("made.jsonl"), {"started": "2026"}, {r.key: r for r in results}, {"seconds": 1.0})
    path.write_text(as_baseline(run), encoding="utf-8")
    return path


def test_a_baseline_is_a_deviations_file_and_may_be_a_plain_list(tmp_path: Path) -> None:
    path = written(tmp_path, result("b"), result("a", "crash", CRASH), result("c", "pass", ""))
    assert path.read_text().startswith("# from made.jsonl, 2 red cases\n\n[[deviation]]\nkind = ")
    plain = tmp_path / "plain.txt"
    plain.write_text(TABLE["plain"])
    assert load(path) == load(plain, what="baseline")
    assert {entry.kind for entry in load(path)} == {"baseline"}
    with pytest.raises(UsageError, match="is not valid TOML"):
        load(plain)


@pytest.mark.parametrize("status", RED)
def test_what_fails_as_before_is_a_known_deviation(status: str, tmp_path: Path) -> None:
    path = written(tmp_path, result("a", status))
    (found,) = judged(path, result("a", status))
    if status == "missing":  # a case that did not run was not seen to fail
        assert (load(path), found.status) == ([], "missing")
    else:
        assert (found.status, found.deviation) == ("deviation", f"baseline-{status}")


@pytest.mark.parametrize(("before", "after", "excused"), TABLE["baseline"])
def test_a_measured_value_and_the_place_of_a_crash_may_differ(
    before: str, after: str, excused: bool, tmp_path: Path
) -> None:
    status, message = ("fail", MESSAGE) if before in MESSAGE else ("crash", CRASH)
    assert message.replace(before, after) != message
    path = written(tmp_path, result("a", status, message))
    (found,) = judged(path, result("a", status, message.replace(before, after)))
    assert found.status == ("deviation" if excused else status)
    assert [one.status for one in judged(path, result("a", "broken"), result("b"))] == ["broken", "fail"]


def test_a_run_with_a_baseline_says_what_became_of_it(tmp_path: Path) -> None:
    path = written(tmp_path, *(result(name) for name in ("same", "other", "mended", "absent")))
    recorder = RunRecorder(None)
    recorder.baselines = KnownDeviations([known()["cpu"]], baseline=path).baselines()
    these = (result("same"), result("other", message="else"), result("mended", "pass", ""), result("new"))
    for found in judged(path, *these):
        recorder.take(found)
    assert recorder.red() == 2
    said = recorder.closing()
    for words in (
        "failing as it says: eager/promote/same-bf16-bf16-cpu",
        "failing in another way than the baseline says: eager/promote/other-bf16-bf16-cpu",
        "not red any more, to be taken out of it: eager/promote/mended-bf16-bf16-cpu",
        "not in this run: eager/promote/absent-bf16-bf16-cpu",
    ):
        assert f"baseline {path}: 1 case is {words}\n" in said
