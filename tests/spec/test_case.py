"""Ids of cases, shards, the rules about ops; and private names: torch's are in the files torch_private.py alone."""

import ast
import itertools
from pathlib import Path

import pytest
import torch

from ampcheck.errors import UsageError
from ampcheck.spec.case import MAX_LENGTH, RULES, assign, case_id, one_off, op_token
from ampcheck.spec.casting import FLOATING, POLICIES
from ampcheck.spec.private_names import PrivateName, PrivateNames, table
from scripts import private_api
from tests.cli_support import PROGRAMS, python

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


PACKAGE = private_api.PACKAGE
OTHERS = {
    *("_replace", "_getframe", "_SubParsersAction", "_fixtureinfo", "_rootpath", "_exit", "_do_configure"),
    *("_elem", "_get_op_or_decomp"),
}
"""Private names of namedtuple, sys, argparse, pytest, os and torchax that the package uses."""
PRINTED = {"checks/amp.py", "programs/regions.py"}
"""The files whose source reproductions print: they need torch alone, and take its private names themselves."""
WITHOUT = "there is no thing without them"


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def violations(text: str, declared: set[str]) -> list[tuple[int, str]]:
    """The line and the name of each private name of torch, or of another module, in the text of a module.

    `declared`: attributes of torch's objects that the code may use by their own names. Ops are public.
    """
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    own = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    found = []
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            before = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            paths = [".".join([*before, alias.name]) for alias in node.names]
            named = [path for path in paths if path.startswith(("torch.", "ampcheck."))]
            found += [(node.lineno, path) for path in named if any(map(private, path.split(".")))]
        elif (
            isinstance(node, ast.Attribute)
            and private(node.attr)
            and not ast.unparse(node).startswith("torch.ops.aten._")
        ):
            base = ast.unparse(node.value)
            if base not in ("self", "cls", "super()") and node.attr not in own | declared | OTHERS:
                found.append((node.lineno, f"{base}.{node.attr}"))
    return sorted(found)


def test_private_names_are_only_in_their_files() -> None:
    declared = {name.path.rpartition(".")[2] for name in table() if name.how in ("attribute", "optional")}
    found = [
        f"{path.relative_to(PACKAGE.parent)}:{line}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != private_api.FILE and path.relative_to(PACKAGE).as_posix() not in PRINTED
        for line, name in violations(path.read_text(encoding="utf-8"), declared)
    ]
    assert not found, "take these in a torch_private.py, or make them public:\n" + "\n".join(found)


def test_each_file_takes_the_names_that_the_table_has() -> None:
    for package, file in private_api.files().items():
        bound = [n.path for n in table() if n.package == package and n.how not in ("attribute", "optional")]
        assert sorted(private_api.taken(file)) == sorted(bound)
    assert private_api.PAGE.read_text(encoding="utf-8") == private_api.page(), "python -m scripts.private_api writes it"


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("import torch\ntorch._C._dispatch_dump('aten::mm')", [(2, "torch._C"), (2, "torch._C._dispatch_dump")]),
        ("from torch._ops import OpOverload", [(1, "torch._ops.OpOverload")]),
        ("def f(op): return op._handle", [(1, "op._handle")]),
        ("from ampcheck.runner import results\nresults._FIELDS, results.FIELDS", [(2, "results._FIELDS")]),
        ("import torch\ntorch.ops.aten._to_copy.default, torch.__version__", []),
        ("def f(op): return op._schema", []),
        ("class A:\n    def __init__(self): self._x = 1\ndef f(a): return a._x", []),
    ],
)
def test_private_names_are_found(code: str, wanted: list[tuple[int, str]]) -> None:
    assert violations(code, {"_schema"}) == wanted


def test_an_error_names_all_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        *(("take", "torch._C._gone", "looking"), ("call", "torch._nowhere.deep.function", "doing")),
        *(("attribute", "torch.Tensor._version", "seeing"), ("attribute", "torch.Tensor._lost", "seeing")),
        ("optional", "torch.Tensor._never_there", "replacing"),
    )
    names = PrivateNames("ampcheck.thing", without=WITHOUT, names=[PrivateName("thing", *row) for row in rows])
    gone = names.take("torch._C._gone")
    with pytest.raises(UsageError, match=r"torch\._C\._gone \(looking\)"):
        gone()
    names.call("torch._nowhere.deep.function")
    missing = (
        r"torch\._C\._gone \(looking\), torch\._nowhere\.deep\.function \(doing\), torch\.Tensor\._lost \(seeing\)"
    )
    said = rf"lacks private names that ampcheck\.thing uses: {missing}; {WITHOUT}\. torch 2\.11 to 2\.15 have them$"
    with pytest.raises(ImportError, match=said):
        names.check()
    monkeypatch.setattr(torch, "__version__", "2.99.0")  # a torch that nobody has looked at goes on without them
    with pytest.warns(UserWarning, match=said):
        names.check()
    with pytest.raises(UsageError, match=r"torch 2\.11 to 2\.15 have them"):
        gone.anything()


def test_a_name_that_is_looked_up_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        PrivateName("thing", "call", f"torch.{name}", "looking") for name in ("_C._dispatch_dump", "_dynamo_of_later.f")
    ]
    names = PrivateNames("ampcheck.thing", without=WITHOUT, names=rows)
    dump = names.call("torch._C._dispatch_dump")
    names.check()
    monkeypatch.setattr(torch._C, "_dispatch_dump", lambda name: f"dump of {name}")
    assert dump("aten::mm") == "dump of aten::mm"
    gone = names.call("torch._dynamo_of_later.f")
    with pytest.raises(UsageError, match=r"torch\._dynamo_of_later\.f \(looking\)"):
        gone()


def run(code: str) -> list[str]:
    """The lines that a process of its own prints."""
    return python("-c", code).splitlines()


def test_a_package_says_what_this_torch_lacks() -> None:
    (line,) = run(PROGRAMS["case-lacking"])
    assert "lacks private names that ampcheck.observe uses: torch._C._dispatch_dump (" in line
    assert "torch._C._is_alias_of (" in line


def test_taking_names_changes_no_random_numbers() -> None:
    """The files make objects to look at; a device that is the default, or no_grad, must not matter."""
    files = ", ".join(f"ampcheck.{package}.torch_private" for package in private_api.files() if package != "jax_device")
    after, fresh = run(PROGRAMS["case-taking"].format(files=files))
    assert after == fresh
