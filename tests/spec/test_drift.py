"""Drift between the policy table and a dispatcher, injected and live."""

from collections.abc import Collection
from pathlib import Path

import pytest
import torch

from ampcheck.observe.dispatcher import live_drift, unlisted
from ampcheck.spec import policies
from ampcheck.spec.policies import KEYS, covered, drift, table, versions

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
    assert [unlisted(key) for key in KEYS] == [[]] * len(KEYS)
    assert live_drift() == []


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
    assert unlisted("AutocastCPU") == ["new.a"]
    assert unlisted("AutocastCUDA") == []
