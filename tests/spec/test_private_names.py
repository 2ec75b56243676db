"""Private names of torch: only in the files torch_private.py, all named at import where they are missing."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from ampcheck.errors import UsageError
from ampcheck.spec.private_names import PrivateNames
from scripts import private_api

PACKAGE = private_api.PACKAGE
ALLOWED = {"_replace", "_getframe", "_SubParsersAction", "_fixtureinfo", "_rootpath", "_exit"}
"""Of namedtuple, sys, argparse, pytest and os."""
TORCHAX = {"_elem", "_get_op_or_decomp", "_to_copy"}


def _private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _chain(node: ast.expr) -> list[str]:
    """The names of `a.b.c`, or nothing for an attribute of another expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := _chain(node.value)):
        return [*before, node.attr]
    return []


def _is_private(path: str, declared: set[str]) -> bool:
    """Return whether a path below torch uses a private name; names of ops (`torch.ops.aten._to_copy`) are public."""
    if path in declared or path == "torch._C" or path.startswith("torch._C."):
        return path not in declared
    parts = path.split(".")
    if parts[:2] == ["torch", "ops"]:
        parts = parts[4:]
    return any(map(_private, parts))


def violations(text: str, declared: set[str]) -> list[tuple[int, str]]:
    """The line and the path of each private name of torch in the text of a module; strings do not count.

    `declared`: attributes of torch's objects, by the path of their class, that the code may use by their own names.
    """
    tree = ast.parse(text)
    found: list[tuple[int, str]] = []
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in (a for a in node.names if a.name.split(".")[0] == "torch"):
                known[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                if _is_private(alias.name, declared):
                    found.append((node.lineno, alias.name))
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                path = known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if _is_private(path, declared):
                    found.append((node.lineno, path))
    made = _made(tree)
    attributes = {path.rpartition(".")[2] for path in declared}
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node in inside:
            continue
        first, *rest = _chain(node) or [""]
        if first in known:
            inside.update(n for n in ast.walk(node) if n is not node)
            path = ".".join([known[first], *rest])
            if _is_private(path, declared) and not _is_private(known[first], declared):
                found.append((node.lineno, path))
        elif _private(node.attr) and first not in ("self", "cls") and node.attr not in attributes | made | ALLOWED:
            found.append((node.lineno, f"….{node.attr}"))
    return sorted(set(found))


def _made(tree: ast.AST) -> set[str]:
    """The private attributes that a module defines itself."""
    out: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            out.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                out.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            out.add(node.id)
    return out


def _declared() -> set[str]:
    names = [name for file in private_api.files() for name in file.names]
    return {name.path for name in names if name.when.startswith("attribute")}


def test_private_names_are_only_in_their_files() -> None:
    declared, found = _declared(), []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name != private_api.FILE:
            extra = TORCHAX if path.parent.name == "torchax" else set()
            for line, name in violations(path.read_text(encoding="utf-8"), declared | extra):
                found.append(f"{path.relative_to(PACKAGE.parent)}:{line}: {name}")
    assert not found, "take these in a torch_private.py:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("import torch\ntorch._C._dispatch_dump('aten::mm')", [(2, "torch._C._dispatch_dump")]),
        ("import torch as t\n\nt.jit._state", [(3, "torch.jit._state")]),
        ("from torch._ops import OpOverload", [(1, "torch._ops.OpOverload")]),
        ("from torch.utils import _pytree", [(1, "torch.utils._pytree")]),
        ("import torch._dynamo", [(1, "torch._dynamo")]),
        ("from torch import nn\nnn.Module._call_impl.__code__", [(2, "torch.nn.Module._call_impl.__code__")]),
        ("import torch\ntorch.ops.aten.mm.default._handle", [(2, "torch.ops.aten.mm.default._handle")]),
        ("def f(op): return op._handle", [(1, "…._handle")]),
        ("import torch\ntorch.ops.aten._to_copy.default, torch.__version__", []),
        ("def f(op): return op._schema", []),
        ("code = 'torch._C._dispatch_dump()'", []),
        ("class A:\n    def __init__(self): self._x = 1\ndef f(a): return a._x", []),
    ],
)
def test_private_names_are_found(code: str, wanted: list[tuple[int, str]]) -> None:
    assert violations(code, {"torch._ops.OpOverload._schema"}) == wanted


def test_page_is_current() -> None:
    """`python -m scripts.private_api` writes it."""
    assert private_api.PAGE.read_text(encoding="utf-8") == private_api.page()


def test_every_name_is_described_once() -> None:
    for file in private_api.files():
        paths = [name.path for name in file.names]
        assert len(set(paths)) == len(paths), file.package
        assert all(name.need for name in file.names), file.package


def test_an_error_names_all_that_is_missing() -> None:
    names = PrivateNames("ampcheck.thing", without="there is no thing without them")
    gone = names.take("torch._C._gone", "looking")
    with pytest.raises(UsageError, match=r"torch\._C\._gone \(looking\)"):
        gone()
    names.call("torch._nowhere.deep.function", "doing")
    names.attributes("torch.Tensor", "_version", "_lost", need="seeing")
    names.optional("torch.Tensor", "_never_there", need="replacing")
    with pytest.raises(UsageError) as caught:
        names.check()
    assert isinstance(caught.value, ImportError)
    text = str(caught.value)
    assert "torch._C._gone (looking), torch._nowhere.deep.function (doing), torch.Tensor._lost (seeing)" in text
    assert "ampcheck.thing" in text
    assert text.endswith("there is no thing without them. torch 2.11 to 2.15 have them")
    assert "_never_there" not in text


def test_another_torch_goes_on_without_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch, "__version__", "2.99.0")
    names = PrivateNames("ampcheck.thing", without="there is no thing without them")
    gone = names.take("torch._C._gone", "looking")
    with pytest.warns(
        UserWarning, match=r"lacks private names that ampcheck\.thing uses: torch\._C\._gone \(looking\)"
    ):
        names.check()
    with pytest.raises(UsageError, match=r"torch 2\.11 to 2\.15 have them"):
        gone.anything()


def test_a_name_that_is_looked_up_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    names = PrivateNames("ampcheck.thing", without="there is no thing without them")
    dump = names.call("torch._C._dispatch_dump", "looking")
    names.check()
    monkeypatch.setattr(torch._C, "_dispatch_dump", lambda name: f"dump of {name}")
    assert dump("aten::mm") == "dump of aten::mm"
    gone = names.call("torch._dynamo_of_later.f", "looking")
    with pytest.raises(UsageError, match=r"torch\._dynamo_of_later\.f \(looking\)"):
        gone()


def test_a_package_says_what_this_torch_lacks() -> None:
    code = (
        "import torch\n"
        "del torch._C._is_alias_of, torch._C._dispatch_dump\n"
        "try: import ampcheck.checks.forward\n"
        "except ImportError as error: print(error)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "lacks private names that ampcheck.observe uses: torch._C._dispatch_dump (" in done.stdout
    assert "torch._C._is_alias_of (" in done.stdout


def test_taking_names_changes_no_random_numbers() -> None:
    """The files make objects to look at; a device that is the default, or no_grad, must not matter."""
    code = (
        "import torch\n"
        "torch.manual_seed(0)\n"
        "with torch.no_grad(), torch.device('meta'):\n"
        "    import ampcheck.bench.torch_private, ampcheck.observe.torch_private, ampcheck.register.torch_private\n"
        "    import ampcheck.samples.torch_private, ampcheck.tools.torch_private, ampcheck.torchscript.torch_private\n"
        "print(torch.initial_seed(), float(torch.rand(1)))\n"
        "torch.manual_seed(0)\n"
        "print(torch.initial_seed(), float(torch.rand(1)))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    after, fresh = done.stdout.splitlines()
    assert after == fresh
