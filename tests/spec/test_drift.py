"""Drift between the policy tables and a dispatcher, planted and live."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ampcheck.observe.dispatcher import UNKNOWN, live_drift, live_registrations, unlisted
from ampcheck.spec import policies
from ampcheck.spec.casting import POLICIES
from ampcheck.spec.drift import covered, drift
from ampcheck.spec.policies import KEYS, rows, table, versions


def as_listed(key: str) -> set[str]:
    return set(table(key, "2.13"))


@pytest.mark.parametrize("version", versions())
def test_no_drift_where_all_agree(version: str) -> None:
    assert drift({key: set(table(key, version)) for key in KEYS}, version) == []


def test_a_planted_overload_is_named() -> None:
    assert drift({"AutocastCPU": as_listed("AutocastCPU") | {"foo.bar"}}, "2.13") == [
        "AutocastCPU registers aten::foo.bar, which the table of torch 2.13 does not list"
    ]


def test_a_removed_overload_is_named() -> None:
    assert drift({"AutocastMPS": as_listed("AutocastMPS") - {"mm"}}, "2.13") == [
        "AutocastMPS does not register aten::mm, which the table of torch 2.13 lists"
    ]


def test_both_ways_at_once_in_a_stable_order() -> None:
    mutant = {
        "AutocastXPU": (as_listed("AutocastXPU") - {"mv"}) | {"foo"},
        "AutocastCPU": (as_listed("AutocastCPU") - {"mm", "bmm"}) | {"b", "a"},
    }
    assert [sentence.split(",")[0] for sentence in drift(mutant, "2.13")] == [
        "AutocastCPU registers aten::a",
        "AutocastCPU registers aten::b",
        "AutocastCPU does not register aten::bmm",
        "AutocastCPU does not register aten::mm",
        "AutocastXPU registers aten::foo",
        "AutocastXPU does not register aten::mv",
    ]


@pytest.mark.parametrize("extra", [set(), {"_cudnn_rnn"}, {"miopen_rnn"}, {"_cudnn_rnn", "miopen_rnn"}])
def test_what_only_some_builds_register_may_be_absent_or_present(extra: set[str]) -> None:
    assert drift({"AutocastCUDA": as_listed("AutocastCUDA") | extra}, "2.13") == []


def test_a_key_without_registrations_lacks_every_overload() -> None:
    assert len(drift({"AutocastMAIA": []}, "2.13")) == 117


def test_a_key_that_is_not_given_is_not_compared() -> None:
    assert drift({}, "2.13") == []


def test_a_key_the_tables_do_not_know() -> None:
    assert drift({"AutocastHPU": ["mm"]}, "2.13") == [
        "AutocastHPU registers aten::mm, which the table of torch 2.13 does not list"
    ]


def test_no_table_no_comparison() -> None:
    with pytest.raises(ValueError, match=r"^no policy table for torch 9\.9"):
        drift({}, "9.9")


@pytest.mark.parametrize("torch_version", ["2.11.0", "2.12.1+cu130", "2.13.0+cpu", "2.13.0a0+git1"])
def test_covered(torch_version: str) -> None:
    assert covered(torch_version)


@pytest.mark.parametrize("torch_version", ["2.10.0", "2.16.0", "2.1.0", "3.13.0"])
def test_not_covered(torch_version: str) -> None:
    assert not covered(torch_version)


def test_live_registrations_are_of_aten_and_of_every_key() -> None:
    live = live_registrations()
    assert tuple(live) == KEYS
    assert all("::" not in name for names in live.values() for name in names)
    assert "mm" in live["AutocastCPU"]


def test_other_libraries_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["aten::mm", "torchvision::nms", "aten::sum.dim_IntList"]
    monkeypatch.setattr(torch._C, "_dispatch_get_registrations_for_dispatch_key", lambda key: names)
    assert live_registrations() == dict.fromkeys(KEYS, frozenset({"mm", "sum.dim_IntList"}))


@pytest.mark.parametrize("key", KEYS)
def test_nothing_is_unlisted_on_a_covered_version(key: str) -> None:
    if not covered(torch.__version__):
        pytest.skip(f"no table for torch {torch.__version__}")
    assert unlisted(key) == []
    assert live_drift() == []


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A torch newer than every table, with a new op and without one that the table lists."""
    (tmp_path / "torch-2.0.csv").write_text(
        "key,overload,policy,builds,verified,source\n"
        "AutocastCPU,mm,downcast,,run,here\n"
        "AutocastCPU,gone,upcast,,run,here\n"
        "AutocastCPU,rnn,upcast,cudnn,run,here\n"
    )
    live = {"AutocastCPU": ["aten::mm", "aten::new.a", "aten::rnn", "other::new"]}
    monkeypatch.setattr(policies, "TABLES", tmp_path)
    monkeypatch.setattr(torch, "__version__", "2.1.0")
    monkeypatch.setattr(torch._C, "_dispatch_get_registrations_for_dispatch_key", lambda key: live.get(key, []))
    rows.cache_clear()
    table.cache_clear()
    yield
    rows.cache_clear()
    table.cache_clear()


@pytest.mark.usefixtures("newer")
def test_a_newer_torch_is_compared_with_the_closest_table_and_says_so() -> None:
    assert live_drift() == [
        "torch 2.1.0 has no policy table; it is compared with the table of torch 2.0",
        "AutocastCPU registers aten::new.a, which the table of torch 2.0 does not list",
        "AutocastCPU does not register aten::gone, which the table of torch 2.0 lists",
    ]


@pytest.mark.usefixtures("newer")
def test_new_overloads_of_a_newer_torch_are_unlisted() -> None:
    assert unlisted("AutocastCPU") == ["new.a"]
    assert unlisted("AutocastCUDA") == []
    assert UNKNOWN not in POLICIES


def test_unlisted_refuses_a_key_without_policies() -> None:
    with pytest.raises(ValueError, match=r"^unknown autocast key 'AutocastHPU'; known: AutocastCPU, "):
        unlisted("AutocastHPU")
