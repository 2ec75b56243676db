"""What the end of a run says, comparing two runs, and merging the runs of one night."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ampcheck.errors import UsageError
from ampcheck.report.conformance import pages
from ampcheck.runner.record import STATUSES, Result, Run
from ampcheck.runner.summarize import (
    ROWS,
    as_markdown,
    compare,
    devices,
    merge,
    nothing_passed,
    table,
    unfinished,
    verdict,
    write_whole,
)
from ampcheck.spec.case import RULES
from tests.report.made_runs import make as made

CPU = {"name": "cpu", "has_values": True}
CUDA = {"name": "cuda", "has_values": True}


def run(*results: Result, name: str = "a", footer: bool = True, devices: Any = (CPU,), **header: Any) -> Run:
    head = {
        "started": "2026-11-20T02:00:00Z",
        "versions": {"torch": "2.13.0"},
        "devices": list(devices),
        "manifest": name,
        "cases": len(results),
        **header,
    }
    end = {"kind": "footer", "seconds": 1.0, "stale": [f"stale in {name}"]} if footer else None
    note = "" if footer else "the run was interrupted"
    return Run(Path(f"{name}.jsonl"), head, {r.key: r for r in results}, end, note)


def test_every_pair_of_statuses_is_in_its_group() -> None:
    red = {"fail", "broken", "fixed", "error", "crash", "timeout", "missing"}
    for before in STATUSES:
        for after in STATUSES:
            found = compare(run(made("mm", before)), run(made("mm", after)))
            if (before not in red and after in red) or (before == "pass" != after):
                want = "regressed"
            elif (before in red and after not in red) or (before != "pass" == after):
                want = "fixed"
            else:
                want = "changed" if before != after else "unchanged"
            for group in ("regressed", "fixed", "changed"):
                assert len(found.group(group)) == (group == want), (before, after, group)
            assert found.unchanged == (want == "unchanged")
            assert found.still_red == (before in red and after in red)


def test_runs_with_nothing_in_common_are_refused() -> None:
    with pytest.raises(UsageError, match=r"share no device: a\.jsonl has cpu, b\.jsonl has cuda"):
        compare(run(made("mm", "pass")), run(made("mm", "pass", device="cuda"), name="b", devices=[CUDA]))
    with pytest.raises(UsageError, match=r"share no case: a\.jsonl has 1 cases, b\.jsonl has 1 others"):
        compare(run(made("mm", "pass")), run(made("dot", "pass"), name="b"))
    with pytest.raises(UsageError, match="share no case"):
        compare(run(), run())


def test_notes_say_what_limits_the_comparison() -> None:
    later = run(made("mm", "pass"), name="b", footer=False, devices=[CPU, CUDA], versions={"torch": "2.14.0"})
    notes = compare(run(made("mm", "pass")), later).notes
    assert notes == (
        "the later run is incomplete (the run was interrupted), so cases it lacks may only not have run",
        "only the later run has cuda",
        "torch went from 2.13.0 to 2.14.0",
    )
    assert compare(run(made("mm", "pass")), run(made("mm", "pass"))).notes == ()


@pytest.fixture
def changed() -> tuple[Run, Run]:
    a = run(made("mm", "pass"), made("dot", "fail"), made("mv", "deviation"), made("bmm", "pass"))
    b = run(
        made("mm", "fail", message="got a|b <i>\nsecond line"),
        made("dot", "pass"),
        made("mv", "unsupported"),
        made("addmm", "pass"),
        made("baddbmm", "pass"),
    )
    return a, b


def test_text(changed: tuple[Run, Run]) -> None:
    text = compare(*changed).as_text()
    order = [text.index(f"{name} (") for name in ("regressed", "fixed", "changed", "removed", "added")]
    assert order == sorted(order)
    assert "3 common cases: 1 regressed, 1 fixed, 1 changed, 1 removed, 2 added; 0 unchanged" in text
    line = next(line for line in text.splitlines() if line.startswith("eager/promote/mm"))
    assert line.split(maxsplit=4)[1:] == ["pass", "→", "fail", "got a|b <i>"]
    assert "eager/promote/addmm" not in text, "added cases are counted, not listed"
    assert [line.split() for line in text.splitlines() if line.startswith("cpu")] == [
        ["cpu", "promote", "pass", "1"],
        ["cpu", "promote", "pass", "2"],
    ]


def test_markdown_escapes(changed: tuple[Run, Run]) -> None:
    text = compare(*changed).as_markdown()
    assert r"got a\|b &lt;i&gt;" in text
    assert "### Regressed (1): not red before, red now" in text
    rows = [line for line in text.splitlines() if line.startswith("|") and "→" in line]
    assert all(row.replace(r"\|", "").count("|") == 4 for row in rows)


def test_json_has_every_case(changed: tuple[Run, Run]) -> None:
    found = json.loads(compare(*changed).as_json())
    assert [c["key"] for c in found["added"]] == [
        "eager/promote/addmm-bf16-bf16-cpu",
        "eager/promote/baddbmm-bf16-bf16-cpu",
    ]
    assert found["regressed"][0]["before"] == "pass"
    assert found["regressed"][0]["message"].endswith("second line")
    assert found["unchanged"] == 0


def test_merge_takes_the_later_result_and_every_device() -> None:
    early = run(made("mm", "fail"), made("dot", "pass"), absent={"cuda": "none", "xpu": "none"})
    late = run(made("mm", "pass"), made("mm", "pass", device="cuda"), name="b", devices=[CUDA], started="2026-11-21")
    whole = merge([late, early])
    assert whole.results["eager/promote/mm-bf16-bf16-cpu"].status == "pass"
    assert len(whole.results) == 3
    assert devices(whole) == ["cpu", "cuda"]
    assert whole.header["started"] == "2026-11-20T02:00:00Z"
    assert whole.header["absent"] == {"xpu": "none"}, "a device that a part tested is not absent"
    assert [part["file"] for part in whole.header["parts"]] == ["a.jsonl", "b.jsonl"]
    assert whole.footer["stale"] == ["stale in a", "stale in b"]
    assert whole.footer["counts"] == {"pass": 3}


def test_merge_keeps_what_ran_over_what_is_missing() -> None:
    first = run(made("mm", "fail"), made("dot", "missing"), name="m", manifest="same", cases=2)
    second = run(made("mm", "missing"), made("dot", "pass"), name="n", manifest="same", cases=2, started="2026-11-21")
    whole = merge([first, second])
    assert {r.op: r.status for r in whole.results.values()} == {"mm": "fail", "dot": "pass"}
    assert whole.header["cases"] == 2, "two parts of one manifest expect it once"


def test_merge_of_an_interrupted_run_of_one_and_of_none() -> None:
    alone = run(made("mm", "pass"))
    whole = merge([alone, run(made("dot", "pass"), name="b", footer=False)])
    assert unfinished(whole) == "the run was interrupted"
    assert whole.note == "b.jsonl: the run was interrupted"
    assert merge([alone]) is alone
    with pytest.raises(UsageError, match="no run to merge"):
        merge([])


@pytest.mark.parametrize(
    ("numbers", "count", "note"),
    [
        ((1, 2, 3), 3, ""),
        ((1, 3), 3, "of 3 shards, 2 is missing"),
        ((2,), 3, "of 3 shards, 1, 3 are missing"),
        ((7,), 20, "of 20 shards, 19 of them are missing"),
        ((1,), 1, ""),
    ],
)
def test_a_missing_shard_leaves_the_run_incomplete(numbers: tuple[int, ...], count: int, note: str) -> None:
    merged = merge([run(made(f"op{n}", "pass"), name=str(n), shard=f"{n}/{count}") for n in numbers])
    assert (merged.note, merged.footer is None) == (note, bool(note))
    assert unfinished(merged) == note, "not that it was interrupted"


def test_the_end_of_a_run_fits_a_screen_and_says_first_what_matters() -> None:
    rules = [rule for rule in RULES if rule != "reports"][: ROWS + 1]
    green = [made("mm", rule=rule) for rule in rules]
    assert verdict(green) == f"Nothing is red on 1 device; {len(rules)} cases pass."
    assert len(table(green).splitlines()) == 4  # the head, the device, and the total
    assert nothing_passed(green) == ""
    some = [*green[1:], made("mm", "deviation", rule=rules[0]), made("bmm", "fail", rule=rules[1])]
    assert verdict(some) == f"1 case is red on cpu: 1 fail; {len(rules) - 1} cases pass, 1 known deviation."
    assert [line.split()[:3] for line in table(some).splitlines()[2:]] == [
        ["cpu", "all", str(len(some))],
        ["cpu", rules[1], "2"],
        ["all", "all", str(len(some))],
    ]
    assert nothing_passed(some) == f"no case passed of {rules[0]} on cpu (1 deviation)"


@pytest.mark.parametrize("status", ["deviation", "unsupported"])
def test_a_device_on_which_nothing_passed_is_named(status: str) -> None:
    others = [made(f"op{number}", status, rule="promote", device="mydevice") for number in range(107)]
    results = [*(made(f"mm{number}", rule=rule) for number, rule in enumerate(RULES)), *others]
    assert verdict(results).startswith("Nothing is red on 2 devices, but no case passed on mydevice; ")
    assert nothing_passed(results) == f"no case passed of all rules on mydevice (107 {status})"
    summary = as_markdown(results, verdict(results), "108 of 108 ran.")
    assert f"\nNote: no case passed of all rules on mydevice (107 {status}).\n" in summary
    one = run(*results)
    (one.footer or {})["stale"] = []
    assert pages.message(one)[0].endswith(" · none on mydevice")
    assert pages.message(one)[1] == "grey"
    assert f"\nNote: no case passed of all rules on mydevice (107 {status}).\n" in pages.summary(one)


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as reader:
        write_whole(pipe, b"green", "summary")
        assert reader.read() == "green"
    assert pipe.is_fifo()
