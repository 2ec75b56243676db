"""Ids of cases, shards, and the rules about ops."""

import ast
import itertools
from pathlib import Path

import pytest

from ampcheck.spec.case import MAX_LENGTH, RULES, assign, case_id, one_off, op_token
from ampcheck.spec.state import FLOATING, POLICIES

PAIRS = list(itertools.permutations(FLOATING, 2))


@pytest.mark.parametrize("count", range(1, 9))
def test_assign_is_the_inverse_of_one_off(count: int) -> None:
    for (base, other), position in itertools.product(PAIRS, range(count)):
        wanted = [base] * count
        wanted[position] = other
        assert assign(one_off(base, other, position, count), count) == tuple(wanted)


def test_dtypes_of_all_arguments() -> None:
    assert all(assign(dtype, count) == (dtype,) * count for dtype in FLOATING for count in range(9))
    assert assign("fp32_bf16_fp16", 3) == ("fp32", "bf16", "fp16")
    with pytest.raises(ValueError, match=r"^'fp32_bf16' names 2 dtypes for 3 arguments$"):
        assign("fp32_bf16", 3)


def test_an_op_has_no_word_of_a_device() -> None:
    assert op_token("_grid_sampler_2d_cpu_fallback") == "_grid_sampler_2d_fallback"
    assert op_token("_grid_sampler_2d_cpu_fallback", "nearest") == "_grid_sampler_2d_fallback+nearest"


def test_a_name_that_makes_the_id_too_long_is_cut_and_stays_apart() -> None:
    rest = "-fp32-bf16-cpu"
    longest = "a" * (MAX_LENGTH - len(rest))
    assert case_id(longest, "", "fp32", "bf16", "cpu") == longest + rest
    cut = [case_id(longest + end, "", "fp32", "bf16", "cpu") for end in "ab"]
    assert len({*cut}) == 2
    assert all(len(text) == MAX_LENGTH and text.endswith(rest) for text in cut)
    by_inputs = [case_id("mm", "", "fp32" * 20 + end, "bf16", "openreg") for end in "ab"]
    assert len({*by_inputs}) == 2
    assert all(text.startswith("mm-fp32") and text.endswith("-bf16-openreg") for text in by_inputs)
    with pytest.raises(ValueError, match=rf"is longer than {MAX_LENGTH} or holds a character"):
        case_id("mm", "", "fp32", "bf16", "cpu" * 30)


SUITES = Path(__file__).parents[2] / "suites"
FILES = sorted(SUITES.rglob("test_ops.py"))
FUNCTIONS = [
    pytest.param(node, id=f"{path.parent.name}-{node.name}")
    for path in FILES
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef)
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_docstring_has_the_sentence_an_example_and_the_source(function: ast.FunctionDef) -> None:
    (decorator,) = function.decorator_list
    assert isinstance(decorator, ast.Call)
    rule = RULES[ast.literal_eval(decorator.args[0])]
    assert function.name == f"test_{rule.name}"
    sentence, *example, source = (ast.get_docstring(function) or "").split("\n\n")
    assert sentence[0].lower() + " ".join(sentence[1:].split()) == f"{rule.sentence}."
    assert example, "there is no worked example"
    assert source == f"Source: {rule.source}"


def test_every_policy_has_a_function() -> None:
    assert [path.parent.name for path in FILES] == ["autograd", "eager", "jit"]
    for path in FILES:
        names = {param.values[0].name for param in FUNCTIONS if str(param.id).startswith(path.parent.name)}
        missing = {f"test_{policy}" for policy in POLICIES} - names
        assert missing == ({"test_banned"} if path.parent.name == "autograd" else set())  # a refused call has none
