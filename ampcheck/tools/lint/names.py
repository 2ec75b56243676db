"""Names in a source file, resolved to torch's functions under whatever alias, and to the file's definitions."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ampcheck.spec.state import DEFAULTS

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
With: TypeAlias = ast.With | ast.AsyncWith
Scope: TypeAlias = ast.Module | Function | ast.ClassDef | ast.Lambda


class Names:
    """The names of one file. Nothing is imported or run."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self._parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.acting: dict[ast.ClassDef, ast.ClassDef] = {}
        """The class of the instance whose inherited methods are read, by the class that has them."""
        self._bound: dict[Scope, dict[str, list[ast.AST]]] = {}
        self._imported: dict[Scope, dict[str, str]] = {}
        for node in ast.walk(tree):
            self._bind(node)

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node)
        elif isinstance(node, Function | ast.ClassDef):
            self._add(self.scope(node), node.name, node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(node, target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            if node.value is not None:
                self._assign(node, node.target, node.value)
            elif isinstance(node.target, ast.Name) and isinstance(self.scope(node), ast.ClassDef):
                self._add(self.scope(node), node.target.id, node)  # a field of a dataclass
        elif isinstance(node, ast.arg):
            self._add(self.scope(node), node.arg, node)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._assign(node, node.optional_vars, node.context_expr)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension, ast.AugAssign)):
            for name in ast.walk(node.target):
                if isinstance(name, ast.Name):
                    self._add(self.scope(node), name.id, node)

    def _assign(self, node: ast.AST, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._add(self.scope(node), target.id, value)
        elif isinstance(target, ast.Attribute) and (owner := self.itself(target.value)) is not None:
            self._add(owner, target.attr, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            if len(values) == len(target.elts):
                for part, inner in zip(target.elts, values, strict=True):
                    self._assign(node, part, inner)
            else:
                for at, part in enumerate(target.elts):
                    item = ast.Subscript(value, ast.Constant(at), ast.Load())
                    self._parents[item] = node
                    self._assign(node, part, item)
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            self._add(self.scope(node), ast.unparse(target), value)

    def _add(self, scope: Scope, name: str, node: ast.AST) -> None:
        self._bound.setdefault(scope, {}).setdefault(name, []).append(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        known = self._imported.setdefault(self.scope(node), {})
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                if not node.level:
                    known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif alias.asname:
                known[alias.asname] = alias.name
            else:
                known[alias.name.partition(".")[0]] = alias.name.partition(".")[0]

    def scope(self, node: ast.AST) -> Scope:
        """Return the scope of a node."""
        inner, found = node, self._parents.get(node)
        while not isinstance(found, Scope) or inner in getattr(found, "decorator_list", ()):
            if found is None:
                return self.tree
            inner, found = found, self._parents.get(found)
        return found

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, from the inside out."""
        found = self._parents.get(node)
        while found is not None:
            yield found
            found = self._parents.get(found)

    def beside(self, statement: ast.AST) -> tuple[list[ast.stmt], list[ast.stmt]]:
        """Return the statements before and after one in its block."""
        around = self._parents.get(statement)
        for block in (getattr(around, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(block, list) and statement in block:
                at = block.index(statement)
                return block[:at], block[at + 1 :]
        return [], []

    def owner(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the class whose method contains a node."""
        found = next((parent for parent in self.parents(node) if isinstance(parent, ast.ClassDef)), None)
        return found and self.acting.get(found, found)

    def around(self, node: ast.AST) -> Iterator[With]:
        """Yield the with statements around a node within its function, from the inside out."""
        for parent in self.parents(node):
            if isinstance(parent, Function | ast.Lambda):
                return
            if isinstance(parent, With):
                yield parent

    def method(self, function: ast.AST) -> str:
        """Return the name of the instance, or the class, that a method is given first; "" for other functions."""
        inside = isinstance(self._parents.get(function), ast.ClassDef)
        if not inside or not isinstance(function, Function):
            return ""
        first = [*function.args.posonlyargs, *function.args.args][:1]
        static = any(ast.unparse(one) == "staticmethod" for one in function.decorator_list)
        return first[0].arg if first and not static else ""

    def itself(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the class whose instance a name is in its methods, `self`; None for other expressions."""
        if not isinstance(node, ast.Name):
            return None
        named = node.id in ("self", "cls") or any(self.method(one) == node.id for one in self.parents(node))
        return self.owner(node) if named else None

    def lookup(self, name: str, at: ast.AST) -> tuple[Scope, list[ast.AST]] | None:
        """Return the scope that binds a name seen from a node, and what it binds it to; None where none does."""
        for scope in self._scopes(at):
            if bound := self._bound.get(scope, {}).get(name):
                return scope, bound
            if name in self._imported.get(scope, {}):
                return None
        return None

    def _scopes(self, at: ast.AST) -> Iterator[Scope]:
        """Yield the scopes whose names are seen from a node, from the inside out."""
        scope = at if isinstance(at, Function | ast.Lambda) else self.scope(at)
        yield scope
        while not isinstance(scope, ast.Module):
            scope = self.scope(scope)
            if not isinstance(scope, ast.ClassDef):
                yield scope

    def attribute(self, owner: ast.ClassDef, name: str, seen: tuple[ast.ClassDef, ...] = ()) -> list[ast.AST]:
        """Return the nodes that a class, or a base class in the file, binds an attribute of its instances to."""
        found = self._bound.get(owner, {}).get(name)
        if found:
            return found
        for base in owner.bases:
            for node in self.definitions(base):
                if isinstance(node, ast.ClassDef) and node not in (*seen, owner):
                    found = self.attribute(node, name, (*seen, owner))
                    if found:
                        return found
        return []

    def kept(self, owner: ast.AST) -> list[ast.AST]:
        """Return what a class of the file binds the attributes of its instances to."""
        bound = self._bound.get(owner, {}) if isinstance(owner, ast.ClassDef) else {}
        return [one for made in bound.values() for one in made]

    def definitions(self, expression: ast.expr) -> list[ast.AST]:
        """Return what a name is bound to."""
        if not isinstance(expression, ast.Name):
            return []
        found = self.lookup(expression.id, expression)
        return found[1] if found else []

    def dotted(self, expression: ast.AST, depth: int = 0) -> str:
        """Return the full name of an expression's value, e.g. "torch.cuda.amp.autocast"; "" where it is none."""
        if isinstance(expression, ast.Attribute):
            base = self.dotted(expression.value, depth)
            return f"{base}.{expression.attr}" if base else ""
        if not isinstance(expression, ast.Name) or depth > 8:
            return ""
        found = self.lookup(expression.id, expression)
        if found is not None:
            values = found[1]
            return self.dotted(values[0], depth + 1) if len(values) == 1 else ""
        imported = (self._imported.get(scope, {}).get(expression.id) for scope in self._scopes(expression))
        return next(filter(None, imported), "")


def last_line(node: ast.stmt) -> int:
    """Return the line that a statement ends in."""
    return node.end_lineno or node.lineno


def own(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body that run when it is called, those of functions it defines left out."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


_GENERIC = ("torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast")
_OF_DEVICE = {
    f"torch.{device}.amp.{middle}autocast": device for device in ("cuda", "cpu") for middle in ("", "autocast_mode.")
}
_OPTIONS = ("device_type", "dtype", "enabled", "cache_enabled")
OLD_OPTIONS = ("enabled", "dtype", "cache_enabled")
"""The arguments of the regions that torch.amp replaced, which name no device type."""

CUSTOM_FWD = tuple(f"torch.{module}custom_fwd" for module in ("amp.", "cuda.amp.", "amp.autocast_mode."))
LOW = ("torch.bfloat16", "torch.float16", "torch.half")
_DTYPE = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


@dataclass(frozen=True, slots=True)
class Option:
    """An argument of a region: its constant value, or the expression that gives it at run time."""

    value: object = None
    expression: ast.expr | None = None

    @property
    def constant(self) -> bool:
        return self.expression is None


@dataclass(frozen=True, slots=True)
class LintedRegion:
    """A call that makes a region. An option that is left out is a constant None, or True for `enabled`."""

    call: ast.Call
    device: Option
    dtype: Option
    enabled: Option
    cache_enabled: Option

    @property
    def disabled(self) -> bool:
        """Return whether it is always disabled."""
        return self.enabled.constant and self.enabled.value is False

    @property
    def own_dtype(self) -> bool:
        """Return whether it names a dtype that is not its device type's default."""
        default = _DTYPE.get(DEFAULTS.get(str(self.device.value), ""))
        return self.dtype.constant and self.dtype.value not in (None, default)

    @property
    def default_dtype(self) -> bool:
        """Return whether it takes the dtype of the region around it, which compilers fix."""
        return self.dtype.constant and self.dtype.value is None and not self.disabled

    @property
    def unsupported(self) -> bool:
        """Return whether eager mode warns of its dtype and disables it. CUDA takes any dtype."""
        named = self.dtype.constant and self.dtype.value is not None
        return named and self.dtype.value not in LOW and self.device.value != "cuda"

    def varying(self) -> tuple[str, ...]:
        """Return the options that are not constant."""
        named = {"enabled": self.enabled, "dtype": self.dtype, "device_type": self.device}
        return tuple(name for name, option in named.items() if not option.constant)


def region(names: Names, expression: ast.AST) -> LintedRegion | None:
    """Return the region that an expression makes; None where it makes none."""
    if not isinstance(expression, ast.Call):
        return None
    name = names.dotted(expression.func)
    if name not in _GENERIC and name not in _OF_DEVICE:
        return None
    order = _OPTIONS if name in _GENERIC else OLD_OPTIONS
    given: dict[str, Option] = {}
    for option, argument in zip(order, expression.args, strict=False):
        given[option] = _option(names, argument)
    for keyword in expression.keywords:
        # **options hides which options there are; those that are not named are then unknown.
        for option in (keyword.arg,) if keyword.arg else set(order) - set(given):
            given[option] = _option(names, keyword.value)
    device = Option(_OF_DEVICE[name]) if name in _OF_DEVICE else given.get("device_type", Option())
    enabled, cached = given.get("enabled", Option(True)), given.get("cache_enabled", Option())
    return LintedRegion(expression, device, given.get("dtype", Option()), enabled, cached)


def _option(names: Names, expression: ast.expr, depth: int = 0) -> Option:
    if isinstance(expression, ast.Constant):
        return Option(expression.value)
    if names.dotted(expression).startswith("torch."):
        return Option(names.dotted(expression))
    if isinstance(expression, ast.Name) and depth < 8:
        found = names.lookup(expression.id, expression)
        # A name of the file that is bound once to a constant is one.
        if found is not None and isinstance(found[0], ast.Module) and len(found[1]) == 1:
            value = found[1][0]
            if isinstance(value, ast.expr):
                inner = _option(names, value, depth + 1)
                if inner.constant:
                    return inner
    return Option(expression=expression)
