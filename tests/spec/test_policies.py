"""The policy table: what it holds, how versions are chosen and what the loader refuses."""

from collections.abc import Collection
from pathlib import Path

import pytest
import torch

from ampcheck.observe.dispatcher import live_drift, live_registrations, unlisted
from ampcheck.spec import policies
from ampcheck.spec.casting import APPENDED
from ampcheck.spec.policies import KEYS, closest, covered, drift, minor, rows, table, versions

HEADER = "key,overload,policy,builds,since,until,verified,source\n"
GOOD = "AutocastCPU,mm,downcast,,9.0,,run,somewhere\n"

# How many overloads each key registers, in the order of KEYS.
REGISTERED = {
    "2.11": [129, 125, 123, 101, 123, 123],
    "2.12": [129, 126, 124, 101, 124, 124],
    "2.13": [127, 119, 117, 95, 117, 117],
    "2.14": [126, 120, 117, 95, 117, 117],
    "2.15": [126, 120, 117, 95, 117, 117],
}


@pytest.mark.parametrize("key", KEYS)
def test_the_live_dispatcher_registers_what_the_table_lists(key: str) -> None:
    if not covered(torch.__version__):
        pytest.skip(f"no table for torch {torch.__version__}; a run reports the drift instead")
    differences = drift({key: live_registrations()[key]}, minor(torch.__version__))
    assert not differences, "\n".join(differences)


@pytest.mark.parametrize("version", versions())
def test_every_row_was_seen_in_the_dispatcher(version: str) -> None:
    """Only a library that no build here has is read or assumed."""
    assert [len(table(key, version)) for key in KEYS] == REGISTERED[version]
    found = rows(version)
    assert {row.key for row in found} == set(KEYS)
    assert all(row.source for row in found)
    assert [row for row in found if row.verified not in ("run", "dispatcher") and not row.builds] == []
    assert {row.overload for row in found if row.builds} == {"_cudnn_rnn", "miopen_rnn"}
    assert {row.overload for row in found if row.policy == "append"} <= APPENDED.keys()


def test_rows_that_need_a_library_are_in_the_table_of_its_builds() -> None:
    assert not {"_cudnn_rnn", "miopen_rnn"} & table("AutocastCUDA", "2.13").keys()
    assert table("AutocastCUDA", "2.13", ("cudnn",))["_cudnn_rnn"] == "downcast"


@pytest.mark.parametrize(
    ("torch_version", "expected"),
    [
        ("2.13.0+cpu", "2.13"),
        ("2.13", "2.13"),
        ("2.14.0a0+git0", "2.14"),
        ("2.16.0a0+git0", "2.15"),
        ("3.0.0", "2.15"),
        ("2.9.1", "2.11"),
    ],
)
def test_closest(torch_version: str, expected: str) -> None:
    assert closest(torch_version) == expected


@pytest.mark.parametrize("text", ["", "v2.13"])
def test_text_that_is_not_a_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a torch version such as '2\.13\.0\+cpu'$"):
        closest(text)


def test_an_unknown_version_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ValueError, match=r"^no policy table for torch 1\.0; there are 2\.11, .*, 2\.15$"):
        rows("1.0")


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the tables, with two versions and without a line."""
    (tmp_path / "releases.csv").write_text("torch,read\n9.0,here\n8.9,here\n")
    monkeypatch.setattr(policies, "TABLES", tmp_path)
    return tmp_path


def test_lines_hold_from_since_to_until(tables: Path) -> None:
    text = (
        GOOD + 'AutocastCPU,mm,upcast,,8.9,8.9,source,"a, b"\nAutocastCUDA,mm,banned,cudnn,8.9,,run; dispatcher 9.0,x\n'
    )
    (tables / "policies.csv").write_text(HEADER + text)
    assert (versions(), closest("8.99")) == (("8.9", "9.0"), "8.9")
    assert [table("AutocastCPU", version) for version in versions()] == [{"mm": "upcast"}, {"mm": "downcast"}]
    assert [row.source for row in rows("8.9")] == ["a, b", "x"]
    assert [row.verified for version in versions() for row in rows(version) if row.builds] == ["run", "dispatcher"]
    assert table("AutocastCUDA", "9.0") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r": the first line must be key,overload,policy,builds,since,until,verified,source"),
        (HEADER + GOOD + "AutocastCPU,mv,downcast\n", " line 3 has 3 fields instead of 8"),
        (HEADER + "AutocastFoo,mm,downcast,,9.0,,run,a\n", " line 2: mm has key 'AutocastFoo'; known: .*MAIA"),
        (HEADER + GOOD + GOOD.replace("9.0", "8.9"), " line 3 repeats AutocastCPU mm"),
        (HEADER + GOOD.replace("9.0", "9.1"), r" line 2 names torch '9\.1'; known: 8\.9, 9\.0"),
        (HEADER + GOOD.replace("9.0,", "9.0,8.9"), r" line 2 ends with torch 8\.9, before it begins with 9\.0"),
    ],
)
def test_a_malformed_table_is_refused(tables: Path, text: str, message: str) -> None:
    (tables / "policies.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"^policies\.csv{message}$"):
        rows("9.0")


CPU, XPU, CUDA = (set(table(key, "2.13")) for key in ("AutocastCPU", "AutocastXPU", "AutocastCUDA"))


@pytest.mark.parametrize("version", versions())
def test_no_drift_where_all_agree(version: str) -> None:
    assert drift({key: set(table(key, version)) for key in KEYS}, version) == []


@pytest.mark.parametrize(
    ("registrations", "said"),
    [
        ({}, []),  # a key that is not given is not compared
        ({"AutocastCPU": CPU | {"foo.bar"}}, ["AutocastCPU registers aten::foo.bar"]),
        ({"AutocastCPU": CPU - {"mm"}}, ["AutocastCPU does not register aten::mm"]),
        (
            {"AutocastXPU": XPU - {"mv"} | {"foo"}, "AutocastCPU": CPU - {"mm"} | {"b", "a"}},
            [
                "AutocastCPU registers aten::a",
                "AutocastCPU registers aten::b",
                "AutocastCPU does not register aten::mm",
                "AutocastXPU registers aten::foo",
                "AutocastXPU does not register aten::mv",
            ],
        ),
        ({"AutocastCUDA": CUDA | {"_cudnn_rnn", "miopen_rnn"}}, []),  # some builds alone register these
        ({"AutocastHPU": ["mm"]}, ["AutocastHPU registers aten::mm"]),
    ],
)
def test_each_difference_is_named(registrations: dict[str, Collection[str]], said: list[str]) -> None:
    found = drift(registrations, "2.13")
    assert [sentence.split(", which the table of torch 2.13 ")[0] for sentence in found] == said


@pytest.mark.skipif(not covered(torch.__version__), reason=f"no table for torch {torch.__version__}")
def test_nothing_is_unlisted_on_a_covered_version() -> None:
    assert ([unlisted(key) for key in KEYS], live_drift()) == ([[]] * len(KEYS), [])


def test_a_newer_torch_is_compared_with_the_closest_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch newer than the table, with a new op and without one that the table lists."""
    lines = ("AutocastCPU,mm,downcast,", "AutocastCPU,gone,upcast,", "AutocastCPU,rnn,upcast,cudnn")
    text = "".join(f"{line},2.0,,run,here\n" for line in lines)
    (tmp_path / "policies.csv").write_text(f"{','.join(policies.COLUMNS)}\n{text}")
    (tmp_path / "releases.csv").write_text("torch,read\n2.0,here\n")
    live = {"AutocastCPU": ["aten::mm", "aten::new.a", "aten::rnn", "other::new"]}
    monkeypatch.setattr(policies, "TABLES", tmp_path)
    monkeypatch.setattr(torch, "__version__", "2.1.0")
    monkeypatch.setattr(torch._C, "_dispatch_get_registrations_for_dispatch_key", lambda key: live.get(key, []))
    assert live_drift() == [
        "torch 2.1.0 has no policy table; it is compared with the table of torch 2.0",
        "AutocastCPU registers aten::new.a, which the table of torch 2.0 does not list",
        "AutocastCPU does not register aten::gone, which the table of torch 2.0 lists",
    ]
    assert (unlisted("AutocastCPU"), unlisted("AutocastCUDA")) == (["new.a"], [])
