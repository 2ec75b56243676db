"""Causes: what a text leaves out, and the groups of red cases."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ampcheck.observe import recorder as observe
from ampcheck.runner.record import MISSING, Cause, Result, cause_of, cause_text, grouped, normalised
from tests.observe.test_blame import kernel, raised_from

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
    assert normalised(one) == normalised(other)


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
    assert normalised(one) != normalised(other)


def test_the_name_of_the_cases_own_op_is_left_out_as_a_word() -> None:
    assert normalised("no kernel for mm", "mm") == normalised("no kernel for bmm", "bmm")
    assert normalised("sum.dim_IntList is new", "sum.dim_IntList") == "… is new"
    assert normalised("no mm_kernel", "mm") == "no mm_kernel"
    assert normalised("no kernel for mm", "bmm") == "no kernel for mm"


def test_a_text_is_bounded() -> None:
    assert len(normalised("word " * 1000)) < 310


# ---- causes of a case


def test_the_cause_of_an_exception_names_the_backends_innermost_frame() -> None:
    error = raised_from(lambda: observe.map_tensors(torch.ones(2), lambda _: kernel("mm")))
    assert cause_text("fail", "aten::mm raised", "downcast", "mm", error) == (
        "fail: RuntimeError: … is wrong (test_blame.py in kernel)"
    )
    assert cause_text("broken", "aten::mm raised", "downcast", "mm", error).startswith("broken: RuntimeError: …")


def test_two_exceptions_in_one_function_are_two_causes_and_sentences_about_one_are_one() -> None:
    one, other = (raised_from(lambda what=what: kernel(what), 1) for what in ("value", "mm"))  # type: ignore[misc]
    assert cause_text("fail", "x", "downcast", "mm", one) != cause_text("fail", "x", "downcast", "mm", other)
    assert cause_text("fail", "first sentence", "downcast", "mm", one) == cause_text("fail", "2nd", "upcast", "", one)


def test_what_raised_inside_of_a_compiled_program_is_on_the_last_line() -> None:
    error = RuntimeError("The following operation failed:\n  File x, line 3\nRuntimeError: no kernel for mm")
    assert cause_text("fail", "x", "downcast", "mm", error) == "fail: RuntimeError: RuntimeError: no kernel for …"


def test_without_an_exception_the_rule_belongs_to_the_cause() -> None:
    message = (
        "argument 0 of aten::mm was given as fp32; expected bf16 (rule downcast: arguments (all) are cast)\nsecond"
    )
    cause = cause_text("fail", message, "downcast", "mm")
    assert cause == "fail: argument … of … was given as …; expected … (rule downcast)"
    assert cause_text("fail", message, "promote", "mm") != cause
    seen = [
        cause_text("fail", f"state: got {a}; expected {b}", "state") for a, b in (("(True, 'x')", 1), ("[]", "None"))
    ]
    assert seen == ["fail: state: got …; expected … (rule state)"] * 2
    assert cause_text("fail", "depth: got 1; expected 2", "state") not in seen
    crash = cause_text("crash", "the process ended with signal SIGSEGV", "downcast", where="kernels.py in mm")
    assert crash == "crash: the process ended with signal SIGSEGV (kernels.py in mm)"


# ---- groups


def result(name: str, status: str = "fail", **fields: Any) -> Result:
    values = {"suite": "eager", "rule": "downcast", "op": name, "amp": "bf16", "device": "mine", "seconds": 0.0}
    return Result(id=f"{name}-fp32-bf16-mine", status=status, **{**values, **fields})


def test_groups_come_in_order_of_size_with_the_shortest_program_as_example() -> None:
    small = [result("a", cause="fail: small", torch="one")]
    large = [result("b", cause="fail: large", torch="three"), result("c", cause="fail: large", torch="two")]
    green = [result("d", "pass"), result("e", "deviation", cause="fail: large")]
    found = grouped([*small, *large, *green])
    assert [(cause.text, len(cause.results), cause.example.op) for cause in found] == [
        ("fail: large", 2, "c"),
        ("fail: small", 1, "a"),
    ]


def test_a_run_file_without_causes_has_them_from_its_messages() -> None:
    old = [result(op, message=f"argument {n} of aten::{op} was given as fp32") for n, op in enumerate(("mm", "bmm"))]
    (cause,) = grouped([*old, result("x", "pass")])
    assert cause.text == "fail: argument … of … was given as … (rule downcast)"
    assert cause_of(result("gone", "missing")) == MISSING


def test_a_wide_cause_is_cut_before_its_place() -> None:
    cause = Cause("fail: " + "w" * 300 + " (ops.py in mm)", ())
    assert len(cause.line(100)) == 100
    assert cause.line(100).endswith("ww… (ops.py in mm)")
    assert Cause("fail: short (rule x)", ()).line() == "fail: short (rule x)"
