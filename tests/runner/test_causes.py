"""Causes: what a text leaves out, whose a frame is, who is to blame, and what is kept of a traceback."""

from __future__ import annotations

import functools
import os
import sysconfig
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.library import Library

from ampcheck.checks import comparisons
from ampcheck.errors import MOST, Broken, CheckFailure, Difference, one_line
from ampcheck.observe import recorder as observe
from ampcheck.runner import causes, outcome
from ampcheck.runner.results import Result
from ampcheck.spec import ids
from tests.cli_support import ROOT

# ---- normalised texts


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("argument 0 of aten::mm was given as fp32", "argument 12 of aten::conv2d was given as bf16"),
        ("got torch.bfloat16", "got torch.float32"),
        ("cannot be multiplied (2x3 and 4x5)", "cannot be multiplied (10x7 and 9x2x2)"),
        ("shape torch.Size([2, 3]) is wrong", "shape torch.Size([]) is wrong"),
        ("shape (4,) is wrong", "shape () is wrong"),
        ("received ['bf16', 'fp32']", "received ['fp16']"),
        ("a tensor at 0x7f12ab", "a tensor at 0x55d0"),
        ("no memory on cuda:0", "no memory on cuda:3"),
        ("differs by up to 0.25", "differs by up to 1.5e-07"),
        ("\"addmm_impl_cpu_\" not implemented for 'Half'", "\"bmm_kernel\" not implemented for 'BFloat16'"),
        ("/home/one/backend/kernels.cpp:12: bad", "/opt/backend/kernels.cpp:340: bad"),
        ("expected Float but found Half", "expected Double but found BFloat16"),
        ("two\nlines   here", "two lines here"),
    ],
)
def test_what_varies_between_cases_is_left_out(one: str, other: str) -> None:
    assert causes.normalised(one) == causes.normalised(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no kernel for this", "no memory for this"),
        ("expected a scalar", "expected a vector"),
        ("index out of range", "slice out of range"),
        ("module.cpp: bad", "kernels.cpp: bad"),
    ],
)
def test_what_tells_reasons_apart_is_kept(one: str, other: str) -> None:
    assert causes.normalised(one) != causes.normalised(other)


def test_the_name_of_the_cases_own_op_is_left_out_as_a_word() -> None:
    assert causes.normalised("no kernel for mm", "mm") == causes.normalised("no kernel for bmm", "bmm")
    assert causes.normalised("sum.dim_IntList is new", "sum.dim_IntList") == "… is new"
    assert causes.normalised("no mm_kernel", "mm") == "no mm_kernel"
    assert causes.normalised("no kernel for mm", "bmm") == "no kernel for mm"


def test_a_text_is_bounded() -> None:
    assert len(causes.normalised("word " * 1000)) < 310


# ---- causes of a case


def _raised(call: Callable[[], object], drop: int = 2) -> BaseException:
    """What a call raises, without the frames of this function and of the call: as if ampcheck had called it."""
    with pytest.raises(Exception) as raised:  # of any kind
        call()
    error = raised.value
    for _ in range(drop):
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    return error


def kernel(what: str, recorder: Any = None) -> None:
    """A backend's kernel with several faults."""
    if what == "callback":
        recorder._seen(None)  # ampcheck's recorder, which asks it for its dtype
    if what == "value":
        raise ValueError(f"{what} 12 is wrong")
    if what == "chained":
        try:
            kernel("value")
        except ValueError as error:
            raise RuntimeError("it did not work") from error
    raise RuntimeError(f"{what} 7 is wrong")


def test_the_cause_of_an_exception_names_the_backends_innermost_frame() -> None:
    error = _raised(lambda: observe.map_tensors(torch.ones(2), lambda _: kernel("mm")))
    assert causes.text("fail", "aten::mm raised", "downcast", "mm", error) == (
        "fail: RuntimeError: … is wrong (test_causes.py in kernel)"
    )
    assert causes.text("broken", "aten::mm raised", "downcast", "mm", error).startswith("broken: RuntimeError: …")


def test_two_exceptions_in_one_function_are_two_causes_and_sentences_about_one_are_one() -> None:
    one, other = (_raised(lambda what=what: kernel(what), 1) for what in ("value", "mm"))  # type: ignore[misc]
    assert causes.text("fail", "x", "downcast", "mm", one) != causes.text("fail", "x", "downcast", "mm", other)
    assert causes.text("fail", "first sentence", "downcast", "mm", one) == causes.text("fail", "2nd", "upcast", "", one)


def test_what_raised_inside_of_a_compiled_program_is_on_the_last_line() -> None:
    error = RuntimeError("The following operation failed:\n  File x, line 3\nRuntimeError: no kernel for mm")
    assert causes.text("fail", "x", "downcast", "mm", error) == "fail: RuntimeError: RuntimeError: no kernel for …"


def test_the_frame_is_that_of_a_cause_where_the_last_exception_has_none() -> None:
    inner = _raised(lambda: kernel("value"), 1)
    outer = RuntimeError("wrapped")
    outer.__cause__ = inner
    assert causes.frame(outer) == "test_causes.py in kernel"
    assert causes.frame(RuntimeError("nobody's")) == ""


def test_without_an_exception_the_rule_belongs_to_the_cause() -> None:
    message = (
        "argument 0 of aten::mm was given as fp32; expected bf16 (rule downcast: arguments (all) are cast)\nsecond"
    )
    cause = causes.text("fail", message, "downcast", "mm")
    assert cause == "fail: argument … of … was given as …; expected … (rule downcast)"
    assert causes.text("fail", message, "promote", "mm") != cause
    seen = [
        causes.text("fail", f"state: got {a}; expected {b}", "state") for a, b in (("(True, 'x')", 1), ("[]", "None"))
    ]
    assert seen == ["fail: state: got …; expected … (rule state)"] * 2
    assert causes.text("fail", "depth: got 1; expected 2", "state") not in seen
    crash = causes.text("crash", "the process ended with signal SIGSEGV", "downcast", where="kernels.py in mm")
    assert crash == "crash: the process ended with signal SIGSEGV (kernels.py in mm)"


# ---- whose a frame is


def test_each_file_has_its_owner() -> None:
    stdlib, torch_file = sysconfig.get_paths()["stdlib"], torch.__file__
    for file, want in {
        str(ROOT / "ampcheck" / "checks" / "forward.py"): "ampcheck",
        str(ROOT / "ampcheck" / "jax_device" / "dispatch" / "call.py"): "backend",
        str(ROOT / "ampcheck" / "register" / "kernels.py"): "backend",
        str(ROOT / "ampcheck" / "suites" / "eager" / "test_cache.py"): "case",
        str(ROOT / "suites" / "eager" / "test_cache.py"): "case",
        str(ROOT / "suites_of_mine" / "x.py"): "backend",
        torch_file: "torch",
        os.path.join(os.path.dirname(os.path.dirname(torch_file)), "torch_mine", "ops.py"): "backend",
        pytest.__file__: "runner",
        os.path.join(stdlib, "contextlib.py"): "library",
        os.path.join(stdlib, "site-packages", "mine", "ops.py"): "backend",
        "<frozen importlib._bootstrap>": "library",
        "<program>": "case",
        "/opt/mine/ops.py": "backend",
    }.items():
        assert causes.owner(file) == want, file


def blamed(call: Callable[[], object]) -> str:
    """Whom ampcheck blames for what a call raises that ampcheck made."""
    return causes.raised_by(_raised(call))


def test_a_backend_is_to_blame_even_where_ampchecks_recorder_raised_for_it() -> None:
    recorder = observe.Recorder("cpu", ())
    library = Library("planted_causes", "DEF")
    library.define("op(Tensor x) -> Tensor")
    library.impl("op", lambda x: kernel("callback", recorder), "CPU")
    with recorder:
        error = _raised(lambda: observe.map_tensors(torch.ones(2), torch.ops.planted_causes.op))
    assert isinstance(error, AttributeError)
    assert causes.owner(traceback.extract_tb(error.__traceback__)[-1].filename) == "ampcheck"
    assert causes.frame(error) == "test_causes.py in kernel"
    assert _status(error) == "fail"
    alone = _raised(lambda: recorder._seen(None))  # type: ignore[arg-type]  # the same without a backend
    assert _status(alone) == "error"


@pytest.mark.parametrize(
    "change",
    [
        torch.linalg.inv,
        functools.partial(torch.select, dim=5, index=0),
        functools.partial(torch.mm, mat2="no tensor"),
    ],
    ids=["RuntimeError", "IndexError", "TypeError"],
)
def test_pytorchs_cpp_is_to_blame_though_the_last_frame_is_ampchecks(change: Any) -> None:
    assert blamed(lambda: observe.map_tensors(torch.ones(2, 3), change)) == "torch"


@pytest.mark.parametrize(
    "call",
    [
        lambda: ids.assign("fp32_bf16at9", 2),
        lambda: observe.overload_name(None),  # type: ignore[arg-type]
        lambda: ids.assign(None, 2),  # type: ignore[arg-type]
    ],
    ids=["its own raise", "an attribute that is not there", "a call of Python's own"],
)
def test_ampcheck_is_to_blame_for_what_it_raised_by_itself(call: Callable[[], object]) -> None:
    assert blamed(call) == "ampcheck"


def _told(error: BaseException) -> pytest.ExceptionInfo[BaseException]:
    """An exception as pytest tells of it."""
    if error.__traceback__ is None:
        error = _raised(lambda: (_ for _ in ()).throw(error), 0)
    return pytest.ExceptionInfo.from_exception(error)


def _status(error: BaseException, when: str = "call") -> str:
    return outcome.status_of(_told(error), when)[0]


def test_statuses_follow_who_is_to_blame() -> None:
    own = _raised(lambda: ids.assign("fp32_bf16at9", 2))
    of_torch = _raised(lambda: observe.map_tensors(torch.ones(2, 3), torch.linalg.inv))
    of_backend = _raised(lambda: kernel("mm"), 1)
    assert [_status(error) for error in (own, of_torch, of_backend)] == ["error", "fail", "fail"]
    assert [_status(error, "setup") for error in (own, of_torch, of_backend)] == ["error", "fail", "fail"]
    assert _status(CheckFailure(["x"])) == "fail"
    assert _status(Broken(["x"])) == "broken"


# ---- exceptions that travel with a failure


def test_a_failure_carries_the_exception_that_it_speaks_of() -> None:
    error = _raised(lambda: kernel("mm"), 1)
    (difference,) = comparisons.same_error(error, None, "aten::mm")  # type: ignore[arg-type]
    failure = CheckFailure(["first", difference])
    assert failure.error is error
    assert failure.__cause__ is error
    assert (
        str(failure)
        == "first\naten::mm raised RuntimeError: mm 7 is wrong; the same call on explicitly cast inputs succeeds"
    )
    assert outcome.raised(_told(failure)) is error
    assert CheckFailure(["first"], error).error is error
    assert CheckFailure(["first"]).error is None
    assert Difference("text").error is None


def test_the_whole_message_is_kept_and_a_very_long_one_bounded() -> None:
    advice = "This could be because the operator doesn't exist for this backend. " * 5 + "\nIts kernels:\n  CPU"
    said = one_line(NotImplementedError(advice))
    assert said.endswith("this backend. Its kernels: CPU")
    assert "\n" not in said
    long = one_line(RuntimeError("a" * 5000 + "the end"))
    assert len(long) < MOST + 50
    assert long.endswith("the end")
    assert one_line(None) == "nothing"


# ---- tracebacks


def test_a_traceback_begins_outside_of_ampcheck_and_keeps_what_it_was_raised_from() -> None:
    error = _raised(lambda: observe.map_tensors(torch.ones(2), lambda _: kernel("chained")))
    text = causes.trimmed(error)
    assert "observe.py" not in text
    assert (
        text.index("ValueError: value 12 is wrong")
        < text.index("direct cause")
        < text.index("RuntimeError: it did not")
    )
    assert text.count("in kernel") == 3


def test_without_a_backends_frame_the_harness_shows_its_own() -> None:
    text = causes.trimmed(_raised(lambda: ids.assign("fp32_bf16at9", 2)))
    assert 'ids.py", line' in text
    assert "in assign" in text


def test_the_line_of_a_scenario_that_made_the_call_is_kept() -> None:
    assert causes._first(["runner", "ampcheck", "case", "torch", "backend"]) == 2
    assert causes._first(["runner", "case", "ampcheck", "torch", "ampcheck", "backend"]) == 3
    assert causes._first(["runner", "ampcheck", "case"]) == 2
    assert causes._first(["runner", "case", "ampcheck"]) == 1


def test_a_traceback_is_bounded() -> None:
    def even(left: int) -> None:  # two functions, for Python shows one that calls itself as repeated
        odd(left - 1)

    def odd(left: int) -> None:
        if left <= 0:
            raise RuntimeError("x" * 20_000 * (left < 0) + "bottom")
        even(left)

    text = causes.trimmed(_raised(lambda: odd(100), 0))
    assert 30 < text.count('", line ') <= 40
    assert text.endswith("RuntimeError: bottom")
    text = causes.trimmed(_raised(lambda: odd(-1), 0))
    assert len(text) < 8100
    assert "[…]" in text


# ---- groups


def result(name: str, status: str = "fail", **fields: Any) -> Result:
    values = {"suite": "eager", "rule": "downcast", "op": name, "amp": "bf16", "device": "mine", "seconds": 0.0}
    return Result(id=f"{name}-fp32-bf16-mine", status=status, **{**values, **fields})


def test_groups_come_in_order_of_size_with_the_shortest_program_as_example() -> None:
    small = [result("a", cause="fail: small", torch="one")]
    large = [result("b", cause="fail: large", torch="three"), result("c", cause="fail: large", torch="two")]
    green = [result("d", "pass"), result("e", "deviation", cause="fail: large")]
    found = causes.grouped([*small, *large, *green])
    assert [(cause.text, len(cause.results), cause.example.op) for cause in found] == [
        ("fail: large", 2, "c"),
        ("fail: small", 1, "a"),
    ]


def test_a_run_file_without_causes_has_them_from_its_messages() -> None:
    old = [result(op, message=f"argument {n} of aten::{op} was given as fp32") for n, op in enumerate(("mm", "bmm"))]
    (cause,) = causes.grouped([*old, result("x", "pass")])
    assert cause.text == "fail: argument … of … was given as … (rule downcast)"
    assert causes.of(result("gone", "missing")) == causes.MISSING


def test_a_wide_cause_is_cut_before_its_place() -> None:
    cause = causes.Cause("fail: " + "w" * 300 + " (ops.py in mm)", ())
    assert len(cause.line(100)) == 100
    assert cause.line(100).endswith("ww… (ops.py in mm)")
    assert causes.Cause("fail: short (rule x)", ()).line() == "fail: short (rule x)"
