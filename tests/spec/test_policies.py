"""The policy tables: what they hold, how they are chosen and what the loader refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ampcheck.observe.dispatcher import live_registrations
from ampcheck.spec import policies
from ampcheck.spec.casting import APPENDED, POLICIES
from ampcheck.spec.drift import covered, drift
from ampcheck.spec.policies import KEYS, closest, minor, rows, table, versions
from ampcheck.spec.rules import RULES

HEADER = "key,overload,policy,builds,verified,source\n"
GOOD = "AutocastCPU,mm,downcast,,run,somewhere\n"

# Per key of torch 2.13: how many overloads have which policy, as its dispatcher and its sources say.
COUNTS = {
    "AutocastCPU": {"downcast": 24, "upcast": 100, "promote": 3},
    "AutocastCUDA": {"downcast": 35, "upcast": 59, "optdtype": 11, "append": 2, "promote": 11, "banned": 1},
    "AutocastXPU": {"downcast": 33, "upcast": 59, "optdtype": 11, "append": 2, "promote": 11, "banned": 1},
    "AutocastMPS": {"downcast": 26, "upcast": 59, "promote": 10},
    "AutocastMTIA": {"downcast": 33, "upcast": 59, "optdtype": 11, "append": 2, "promote": 11, "banned": 1},
    "AutocastMAIA": {"downcast": 33, "upcast": 59, "optdtype": 11, "append": 2, "promote": 11, "banned": 1},
}


@pytest.mark.parametrize("key", KEYS)
def test_the_live_dispatcher_registers_what_the_table_lists(key: str) -> None:
    if not covered(torch.__version__):
        pytest.skip(f"no table for torch {torch.__version__}; a run reports the drift instead")
    differences = drift({key: live_registrations()[key]}, minor(torch.__version__))
    assert not differences, "\n".join(differences)


@pytest.mark.parametrize("key", KEYS)
def test_policies_per_key(key: str) -> None:
    assert Counter(table(key, "2.13").values()) == COUNTS[key]


def test_registrations_per_key() -> None:
    assert [len(table(key, "2.14")) for key in KEYS] == [126, 120, 117, 95, 117, 117]
    assert [len(table(key, "2.13")) for key in KEYS] == [127, 119, 117, 95, 117, 117]
    assert [len(table(key, "2.12")) for key in KEYS] == [129, 126, 124, 101, 124, 124]
    assert [len(table(key, "2.11")) for key in KEYS] == [129, 125, 123, 101, 123, 123]


def test_2_12_added_rms_norm() -> None:
    for key in KEYS:
        new = {} if key in ("AutocastCPU", "AutocastMPS") else {"rms_norm": "upcast"}
        assert table(key, "2.12") == {**table(key, "2.11"), **new}


def test_2_13_dropped_the_overloads_of_named_tensors_and_changed_nothing_else() -> None:
    named = ("dimname", "Dimname", "dim_Dimname", "dim_DimnameList", "names_ScalarOpt_dim")
    for key in KEYS:
        kept = {o: p for o, p in table(key, "2.12").items() if o.partition(".")[2] not in named}
        assert table(key, "2.13") == kept


def test_2_14_brought_sqrth_and_dropped_two_on_the_cpu() -> None:
    new = {"AutocastCPU": {"linalg_matrix_sqrth": "upcast"}, "AutocastCUDA": {"linalg_matrix_sqrth": "upcast"}}
    for key in KEYS:
        kept = {o: p for o, p in table(key, "2.13").items() if o not in ("cholesky", "qr")}
        assert table(key, "2.14") == {**kept, **new.get(key, {})}


def test_2_15_changed_nothing() -> None:
    assert all(table(key, "2.15") == table(key, "2.14") for key in KEYS)


@pytest.mark.parametrize("version", versions())
def test_tables_are_sorted_and_say_where_they_come_from(version: str) -> None:
    order = [(row.key, row.overload) for row in rows(version)]
    assert order == sorted(order)
    assert {row.key for row in rows(version)} == set(KEYS)
    assert all(row.source for row in rows(version))
    assert {row.builds for row in rows(version)} == {"", "cudnn", "miopen"}


@pytest.mark.parametrize("version", versions())
def test_every_policy_was_seen(version: str) -> None:
    """At least in the dispatcher of that version; only a library no build here has is read or assumed."""
    for row in rows(version):
        seen = ("run", "dispatcher") if row.key != "AutocastMAIA" else ("dispatcher",)
        assert row.verified in seen or row.builds, row


@pytest.mark.parametrize("version", versions())
def test_appended_overloads_are_known(version: str) -> None:
    wanted = {row.overload for row in rows(version) if row.policy == "append"}
    missing = wanted - APPENDED.keys()
    assert not missing, f"casting.APPENDED names no overload with a dtype for {sorted(missing)} of torch {version}"


def test_rows_that_need_a_library_are_in_no_table() -> None:
    assert {row.overload for row in rows("2.13") if row.builds} == {"_cudnn_rnn", "miopen_rnn"}
    assert not {"_cudnn_rnn", "miopen_rnn"} & table("AutocastCUDA", "2.13").keys()


def test_every_policy_is_a_rule() -> None:
    assert set(POLICIES) <= RULES.keys()
    assert all(rule.sentence and rule.source for rule in RULES.values())


@pytest.mark.parametrize(
    ("torch_version", "expected"),
    [
        ("2.13.0+cpu", "2.13"),
        ("2.13", "2.13"),
        ("2.12.1", "2.12"),
        ("2.11.0", "2.11"),
        ("2.14.0a0+git0", "2.14"),
        ("2.14a0", "2.14"),
        ("2.16.0a0+git0", "2.15"),
        ("3.0.0", "2.15"),
        ("2.10.0", "2.11"),
        ("2.9.1", "2.11"),
        ("1.13.1", "2.11"),
    ],
)
def test_closest(torch_version: str, expected: str) -> None:
    assert closest(torch_version) == expected


def test_closest_takes_the_newest_older_one_where_a_version_is_left_out(tables: Path) -> None:
    for version in ("2.9", "2.11", "2.13"):
        (tables / f"torch-{version}.csv").write_text(HEADER + GOOD)
    assert versions() == ("2.9", "2.11", "2.13")
    assert closest("2.12.3") == "2.11"
    assert closest("2.10.0") == "2.9"


@pytest.mark.parametrize("text", ["", "nightly", "2", "v2.13", "2.x"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a torch version such as '2\.13\.0\+cpu'$"):
        closest(text)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in place of the tables."""
    monkeypatch.setattr(policies, "TABLES", tmp_path)
    _forget()
    yield tmp_path
    _forget()


def _forget() -> None:
    rows.cache_clear()
    table.cache_clear()


def test_an_unknown_version_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ValueError, match=r"^no policy table for torch 1\.0; there are 2\.11, .*, 2\.15$"):
        rows("1.0")


def test_a_good_table_is_read(tables: Path) -> None:
    (tables / "torch-9.0.csv").write_text(HEADER + GOOD + 'AutocastCUDA,mm,downcast,cudnn,source,"a, b"\n')
    assert [row.source for row in rows("9.0")] == ["somewhere", "a, b"]
    assert table("AutocastCPU", "9.0") == {"mm": "downcast"}
    assert table("AutocastCUDA", "9.0") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"torch-9\.0\.csv: the first line must be key,overload,policy,builds,verified,source"),
        ("key,overload\n", r"torch-9\.0\.csv: the first line must be key,overload,policy,builds,verified,source"),
        (HEADER + GOOD + "AutocastCPU,mv,downcast\n", r"torch-9\.0\.csv line 3 has 3 fields instead of 6"),
        (HEADER + "AutocastCPU,mm,downcast,,run,a,b\n", r"torch-9\.0\.csv line 2 has 7 fields instead of 6"),
        (HEADER + "AutocastCPU,,downcast,,run,a\n", r"torch-9\.0\.csv line 2 names no overload"),
        (
            HEADER + "AutocastFoo,mm,downcast,,run,a\n",
            r"torch-9\.0\.csv line 2: mm has key 'AutocastFoo'; known: .*MAIA",
        ),
        (HEADER + "AutocastCPU,mm,fp32,,run,a\n", r"torch-9\.0\.csv line 2: mm has policy 'fp32'; known: .*banned"),
        (HEADER + "AutocastCPU,mm,downcast,,guess,a\n", r"torch-9\.0\.csv line 2: mm has verified 'guess'; known: .*"),
        (HEADER + GOOD + GOOD, r"torch-9\.0\.csv line 3 repeats AutocastCPU mm"),
    ],
)
def test_a_malformed_table_is_refused(tables: Path, text: str, message: str) -> None:
    (tables / "torch-9.0.csv").write_text(text)
    with pytest.raises(ValueError, match=f"^{message}$"):
        rows("9.0")
