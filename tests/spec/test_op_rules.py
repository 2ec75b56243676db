"""The docstrings of the op rules' functions, `suites/*/test_ops.py`, say what `ampcheck.spec.case` says."""

import ast
from pathlib import Path

import pytest

from ampcheck.spec.case import RULES
from ampcheck.spec.casting import POLICIES

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
