"""The command line but for `run`: devices, explain, compare, report, deviations, lists."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from ampcheck.cli import main
from ampcheck.devices.registry import known
from ampcheck.errors import UsageError
from ampcheck.runner.deviations import load, suggest
from ampcheck.runner.record import read
from ampcheck.spec.case import RULES
from ampcheck.spec.policies import closest, table
from ampcheck.tools.lists import read_cpp
from tests.cli_support import MODULE, ROOT, environment, printed, python, refused
from tests.report import made_runs

# ---- the door


def test_the_version_names_what_decides_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--version"])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"ampcheck {version('ampcheck')}"
    assert {f"torch {version('torch')}", f"pytest {version('pytest')}"} <= set(lines)


@pytest.mark.parametrize(
    "statement",
    [
        "import ampcheck, ampcheck.spec.scaler, ampcheck.runner.plugin",
        "from ampcheck.cli import main; main._parser().format_help()",
    ],
)
def test_importing_imports_neither_torch_nor_jax(statement: str) -> None:
    code = f"import sys; {statement}; print(sorted({{'torch', 'jax', 'torchax', 'numpy'}} & set(sys.modules)))"
    assert python("-c", code) == "[]\n"


@pytest.mark.nightly
@pytest.mark.parametrize("arguments", [["devices"], ["explain", "mm", "--inputs", "fp16"]])
def test_an_answer_is_remembered_until_a_file_or_a_version_changes(arguments: list[str], tmp_path: Path) -> None:
    code = f"import sys; from ampcheck.cli.main import main; main({arguments}); print('torch' in sys.modules)"

    def ask(before: str = "pass") -> tuple[str, bool]:
        out = python("-c", f"{before}; {code}", XDG_CACHE_HOME=str(tmp_path))
        return out.removesuffix("True\n").removesuffix("False\n"), out.endswith("True\n")

    said, loaded = ask()
    assert loaded
    assert ask() == (said, False)
    changed = "import ampcheck.cli.common as c; c.versions = lambda: {'torch': '0'}"
    assert ask(changed) == (said, True)
    (tmp_path / "ampcheck" / "answers.json").write_text("{", encoding="utf-8")
    assert ask() == (said, True)


def test_the_door_opens_when_asked() -> None:
    import ampcheck

    assert callable(ampcheck.trace)
    assert "trace" in dir(ampcheck)
    with pytest.raises(AttributeError, match="module 'ampcheck' has no attribute 'nope'"):
        _ = ampcheck.nope  # type: ignore[attr-defined]  # what is refused


def test_a_reader_that_stops_is_no_error() -> None:
    command = f"{sys.executable} -m ampcheck explain mm | head -1"
    done = subprocess.run(command, shell=True, env=environment(), capture_output=True, text=True, check=True)
    assert done.stderr == ""


# ---- devices


def test_devices_shows_every_device(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {line.split()[0]: line for line in printed(capsys, "devices").splitlines() if line}
    for name, device in known().items():
        assert device.key in rows[name]
        assert (device.unavailable() or "yes") in rows[name]
        assert ("values and dtypes" if device.has_values else "dtypes only") in rows[name]
        assert f"  {len(device.policies())}  " in rows[name]


def test_devices_of_others(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "third_party_device.py").write_text(MODULE)
    assert "\nswapped " in printed(capsys, "devices", "--device-module=third_party_device")


# ---- explain


TABLE = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("arguments", TABLE["explained"])
def test_explain(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "explain", *arguments.split())
    assert [pattern for pattern in TABLE["explained"][arguments] if not re.search(pattern, out, re.MULTILINE)] == []


@pytest.mark.parametrize("name", TABLE["resolved"])
def test_explain_resolves_names(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "explain", name, "--device=virtual:cuda")
    shown = [line.split()[0].removeprefix("aten::") for line in out.splitlines() if line.startswith("aten::")]
    assert shown == TABLE["resolved"][name]


def test_explain_says_what_no_policy_means(capsys: pytest.CaptureFixture[str]) -> None:
    out = " ".join(printed(capsys, "explain", "relu").split())
    assert "aten::relu has no policy under any dispatch key, so autocast lets it fall through" in out
    assert RULES["fallthrough"].sentence in out
    assert "Known deviation" not in printed(capsys, "explain", "mm", "--device=cpu")


@pytest.mark.parametrize("op", ["softmax", "linear", "scaled_dot_product_attention", "layer_norm", "sum", "cat"])
def test_explain_answers_on_the_first_screen(op: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "explain", op).splitlines()
    assert max(map(len, lines)) <= 100
    groups = [place for place, line in enumerate(lines) if line.startswith("On ")]
    assert lines[groups[0]].startswith("On cpu in a region of bf16: ")
    assert groups[1] < 12
    assert any(re.match("  fp16.*fp(16|32)", line) for line in lines[groups[1] : 24])


# ---- compare, report


def write(path: Path, statuses: dict[str, str], second: int = 0, **fields: Any) -> Path:
    """A run file of cases `op-inputs-amp-token` with statuses; a status may carry a message behind a colon."""
    results = []
    for name, found in statuses.items():
        suite, rule, case = name.split("/")
        op, inputs, amp, _ = case.split("-")
        status, _, message = found.partition(": ")
        more = {"suite": suite, "rule": rule, "inputs": inputs, "amp": amp, "message": message}
        results.append(made_runs.make(op, status, **more, **fields))
    return made_runs.write(path, results, started=f"2026-11-20T10:00:0{second}Z")


GOOD = {"eager/downcast/mm-fp32-bf16-cpu": "pass", "eager/downcast/bmm-fp32-bf16-cpu": "pass"}


def test_compare_ends_with_1_where_something_regressed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a.jsonl", GOOD)
    b = write(tmp_path / "b.jsonl", {**GOOD, "eager/downcast/mm-fp32-bf16-cpu": "fail: too wide"}, second=1)
    assert "1 regressed" in printed(capsys, "compare", str(a), str(b), code=1)
    assert "0 regressed, 1 fixed" in printed(capsys, "compare", str(b), str(a))
    assert "0 regressed" in printed(capsys, "compare", str(a), str(a))
    assert '"regressed"' in printed(capsys, "compare", str(a), str(b), "--format=json", code=1)
    assert "### Regressed (1)" in printed(capsys, "compare", str(a), str(b), "--format=markdown", code=1)


def test_compare_tells_a_part_from_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = {f"eager/{rule}/mm-fp32-bf16-cpu": "pass" for rule in RULES}
    whole = write(tmp_path / "whole.jsonl", every)
    part = write(tmp_path / "part.jsonl", dict(list(every.items())[:2]), second=1)
    assert main.main(["compare", str(whole), str(part)]) == 2
    out, err = capsys.readouterr()
    assert f"lacks {len(every) - 2} cases of {whole}; only 2 were compared" in err
    assert out.splitlines()[2].startswith("note: the runs differ in what they select")
    assert len(out.splitlines()) < 25
    assert f"{len(every) - 2} added" in printed(capsys, "compare", str(part), str(whole))


# ---- deviations


FAILED = TABLE["failed"]
LEFT = {"eager/upcast/log-fp32-bf16-cpu", "eager/promote/cat-fp32-bf16-cpu"}


def test_suggested_globs_cover_the_failing_cases_and_no_other(tmp_path: Path) -> None:
    found = read(write(tmp_path / "run.jsonl", FAILED))
    suggestion = suggest(found)
    assert [entry.cases for entry in suggestion.entries] == [
        ("downcast/*-fp32-bf16-cpu",),
        ("upcast/exp-fp32-bf16-cpu",),
        ("downcast/conv1d-fp16-bf16-cpu",),
    ]
    assert {sentence.partition(":")[0] for sentence in suggestion.left} == LEFT


def test_a_suggestion_waives_once_a_reason_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path / "run.jsonl", FAILED)
    text = printed(capsys, "deviations", "suggest", str(run), "--device=cpu")
    assert tomllib.loads(text)["deviation"][0]["reason"] == ""
    path = tmp_path / "deviations.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match="has no reason"):
        load(path)
    path.write_text(text.replace('reason = ""', 'reason = "Known."'))
    assert [d.cases for d in load(path)] == [entry.cases for entry in suggest(read(run)).entries]


def test_a_star_that_would_reach_a_passing_case_is_not_used(tmp_path: Path) -> None:
    ops = {f"eager/downcast/{op}-{dtype}-bf16-cpu": "fail: no" for op in ("a", "b") for dtype in ("fp32", "fp16")}
    (entry,) = suggest(read(write(tmp_path / "all.jsonl", ops))).entries
    assert entry.cases == ("downcast/*-bf16-cpu",)
    ops["eager/downcast/c-fp64-bf16-cpu"] = "pass"
    (entry,) = suggest(read(write(tmp_path / "not_c.jsonl", ops))).entries
    assert sorted(entry.cases) in (
        ["downcast/*-fp16-bf16-cpu", "downcast/*-fp32-bf16-cpu"],
        ["downcast/a-*-bf16-cpu", "downcast/b-*-bf16-cpu"],
    )


def test_what_another_entry_speaks_of_is_not_suggested(tmp_path: Path) -> None:
    run = write(tmp_path / "run.jsonl", {"eager/downcast/a-fp32-bf16-cpu": "fail: no"}, deviation="mine")
    suggestion = suggest(read(run))
    assert suggestion.entries == ()
    assert "deviation 'mine' speaks of it, but its raises does not match" in suggestion.left[0]


def test_nothing_to_suggest_and_an_unknown_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path / "run.jsonl", GOOD)
    assert "# No case fails that an entry could speak of." in printed(capsys, "deviations", "suggest", str(run))
    assert "has no case of device 'cuda'" in refused(capsys, "deviations", "suggest", str(run), "--device=cuda")


# ---- lists; tests/jax has that of a process

SOURCE = Path(__file__).with_name("autocast.cpp")
OWN = {"mm": "downcast", "conv1d.padding": "downcast", "pow.Scalar": "upcast", "dot": "promote", "mv": "unknown"}


def test_the_macros_of_a_source_and_of_torch_are_read() -> None:
    xpu = table("AutocastXPU", closest(torch.__version__))
    assert read_cpp(SOURCE) == {"AutocastXPU": xpu, "AutocastPrivateUse1": OWN}


@pytest.mark.parametrize("names", [[], ["cuda", "torch_npu", "torch_musa", "torch_mlu"]])
def test_the_first_screen_has_counts_and_differences(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "lists", *names, "--torch=2.13").splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    counted = [line.partition(":")[0] for line in lines[2:] if re.match(r"\w+: \d+ \(", line)]
    assert counted == (names or ["cuda", "cpu", "xpu", "mps", "mtia", "maia"])
    assert sum(" on cuda, " in line for line in lines) >= 4


def test_one_op_across_lists(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "lists", "cpu", "cuda", "mps", "--op=torch.softmax", "--json"))
    assert [one["policies"] for one in found["lists"]] == [{}, {"softmax.int": "optdtype"}, {"softmax.int": "upcast"}]
    assert [one["lists"] for one in found["differences"]] == [["cuda"], ["mps"]]
    assert "no policy for it" in printed(capsys, "lists", "--op=relu")


def test_the_page_is_what_its_command_prints() -> None:
    page = (ROOT / "docs" / "autocast_lists.md").read_text(encoding="utf-8")
    command = re.search(r"Generated by `ampcheck lists ([^`]*)`", page)
    assert command
    texts = [
        re.sub(r"of torchax \S+", "", text) for text in (python("-m", "ampcheck", "lists", *command[1].split()), page)
    ]
    assert texts[0] == texts[1], "make docs writes it"
