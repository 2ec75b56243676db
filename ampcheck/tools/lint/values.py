"""The values that expressions of a file can have: followed through names, attributes, arguments, returns and dicts."""

import ast
from collections.abc import Iterator
from dataclasses import replace

from ampcheck.tools.lint.names import Function, LintedRegion, Names, With, own, region

# Methods that return their object.
SAME = ("eval", "train", "to", "cuda", "cpu", "float", "double", "half", "bfloat16", "requires_grad_", "compile")
_WRAPS = ("torch.compile", "torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel")
_LISTS = ("torch.nn.ModuleList", "torch.nn.Sequential")
_CONTEXT = ("contextlib.contextmanager", "contextlib.asynccontextmanager")


class Values:
    """The values of one file's expressions. Nothing is imported or run."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._known: dict[ast.AST, list[ast.AST]] = {}
        self._bound: dict[ast.AST, list[ast.AST]] = {}
        self._called: dict[str, list[ast.Call]] = {}
        self._parts: dict[ast.ClassDef, list[ast.Call]] | None = None
        for node in ast.walk(names.tree):
            if isinstance(node, ast.Call):
                self._called.setdefault(last_name(node.func), []).append(node)

    def origins(self, node: ast.AST) -> list[ast.AST]:
        """Return the nodes that make an expression's values: calls, constants, functions, parameters, torch's names."""
        if node not in self._known:
            self._known[node] = []  # a value that depends on itself adds nothing
            self._known[node] = list(dict.fromkeys(self._origins(node)))
        return self._known[node]

    def _origins(self, node: ast.AST) -> Iterator[ast.AST]:
        found: list[ast.AST] = []
        if isinstance(node, (ast.Name, ast.Attribute)):
            bound = self.bound(node)
            found = [origin for value in bound for origin in self._of_bound(value)]
        elif isinstance(node, ast.Subscript):
            found = self._of_item(node)
        elif isinstance(node, ast.Call):
            found = self._of_call(node)
        elif isinstance(node, ast.IfExp):
            found = [*self.origins(node.body), *self.origins(node.orelse)]
        elif isinstance(node, ast.BoolOp):
            found = [origin for value in node.values for origin in self.origins(value)]
        elif isinstance(node, (ast.NamedExpr, ast.Await)):
            found = self.origins(node.value)
        yield from found or [node]

    def bound(self, node: ast.AST) -> list[ast.AST]:
        """Return what the file binds a name or an attribute to."""
        if node not in self._bound:
            self._bound[node] = []
            self._bound[node] = self._binding(node)
        return self._bound[node]

    def _binding(self, node: ast.AST) -> list[ast.AST]:
        if isinstance(node, ast.Name):
            found = self.names.lookup(node.id, node)
            return found[1] if found else []
        if not isinstance(node, ast.Attribute) or self.names.dotted(node).startswith("torch."):
            return []
        owner = self.names.itself(node.value)
        if owner is not None:
            return self.names.attribute(owner, node.attr)
        return [
            value
            for kind, made in self.instances(node.value)
            for value in (self._field(kind, made, node.attr) or self.names.attribute(kind, node.attr))
        ]

    def _of_bound(self, value: ast.AST) -> list[ast.AST]:
        if isinstance(value, ast.arg):
            return self._of_parameter(value)
        if isinstance(value, (ast.For, ast.AsyncFor, ast.comprehension)) and isinstance(value.target, ast.Name):
            return self._items(value.iter) or [value]
        return self.origins(value) if isinstance(value, ast.expr) else [value]

    def _items(self, container: ast.expr) -> list[ast.AST]:
        return [
            origin for one in self.origins(container) for item in self._elements(one) for origin in self.origins(item)
        ]

    def _elements(self, made: ast.AST) -> list[ast.expr]:
        """Return the expressions of a list's elements; one for all of a comprehension."""
        if isinstance(made, ast.Call) and self.names.dotted(made.func) in _LISTS and made.args:
            made = made.args[0]
        if isinstance(made, (ast.ListComp, ast.GeneratorExp)):
            return [made.elt]
        if isinstance(made, ast.DictComp):
            return [made.value]
        if isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr == "values":
            dicts = [one for one in self.origins(made.func.value) if isinstance(one, ast.Dict)]
            return [value for one in dicts for value in one.values]
        return made.elts if isinstance(made, (ast.List, ast.Tuple)) else []

    def _of_item(self, node: ast.Subscript) -> list[ast.AST]:
        stored = self.names.lookup(ast.unparse(node), node)
        found = [origin for value in (stored[1] if stored else ()) for origin in self._of_bound(value)]
        keys = self.constants(node.slice)
        key = keys[0] if len(keys) == 1 else None
        for origin in self.origins(node.value):
            if isinstance(origin, ast.Dict):
                pairs = zip(origin.keys, origin.values, strict=True)
                items = [v for k, v in pairs if None in keys or (isinstance(k, ast.Constant) and k.value in keys)]
            elif isinstance(origin, ast.Call) and last_name(origin.func) == "dict":
                items = [word.value for word in origin.keywords if word.arg in keys]
            else:
                items = self._elements(origin)
                items = items[key : key + 1 or None] if isinstance(key, int) and len(items) > 1 else items
            found += [o for item in items for o in self.origins(item)]
        return found

    def _of_call(self, call: ast.Call) -> list[ast.AST]:
        function = self.definition(call)
        if function is not None:
            if any(self.names.dotted(one) in _CONTEXT for one in function.decorator_list):
                return [call]
            returned = (one.value for one in own(function) if isinstance(one, ast.Return) and one.value)
            return [origin for value in returned for origin in self.origins(value)]
        if isinstance(call.func, ast.Attribute) and call.func.attr in SAME:
            return self.origins(call.func.value)
        if self.names.dotted(call.func) in _WRAPS and call.args:
            return self.origins(call.args[0])
        if last_name(call.func) == "getattr" and len(call.args) == 2 and self.names.dotted(call.args[0]) == "torch":
            named = self.constants(call.args[1])
            return [ast.Attribute(call.args[0], str(one), ast.Load()) for one in named if one is not None] or [call]
        return [call]

    # ---- functions and classes of the file

    def definition(self, call: ast.Call) -> Function | None:
        """Return the function of the file that a call runs, also by calling a module of a class of the file."""
        bound = self.bound(call.func)
        if not bound and not isinstance(call.func, (ast.Name, ast.Attribute, ast.Subscript)):
            return None
        origins = self.origins(call.func)
        found = [one for one in origins if isinstance(one, Function)]
        if not found:
            for kind, _ in self.instances(call.func):
                methods = self.names.attribute(kind, "forward") or self.names.attribute(kind, "__call__")
                found += [one for one in methods if isinstance(one, Function)]
        return found[0] if len(set(found)) == 1 and len(found) == max(len(origins), 1) else None

    def instances(self, node: ast.AST) -> list[tuple[ast.ClassDef, ast.Call | None]]:
        """Return the classes of the file that an expression's values are instances of, and the calls that made them."""
        out: list[tuple[ast.ClassDef, ast.Call | None]] = []
        for origin in self.origins(node):
            made = origin.func if isinstance(origin, ast.Call) else None
            if isinstance(origin, (ast.arg, ast.AnnAssign)) and origin.annotation is not None:
                made = origin.annotation
            for kind in self.bound(made) if made is not None else ():
                if isinstance(kind, ast.ClassDef):
                    out.append((kind, origin if isinstance(origin, ast.Call) else None))
        return out

    def _field(self, kind: ast.ClassDef, made: ast.Call | None, name: str) -> list[ast.AST]:
        """Return what an instance of a dataclass was given for a field."""
        fields = [
            one.target.id for one in kind.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        ]
        if made is None or name not in fields:
            return []
        at = fields.index(name)
        named: list[ast.AST] = [word.value for word in made.keywords if word.arg == name]
        return [*made.args[at : at + 1], *named]

    def _of_parameter(self, parameter: ast.arg) -> list[ast.AST]:
        annotated: list[ast.AST] = [] if parameter.annotation is None else [parameter]
        return annotated + [o for value in self.given(parameter) for o in self.origins(value)] or [parameter]

    def given(self, parameter: ast.arg) -> list[ast.expr]:
        """Return the default of a parameter, and what the calls in the file give for it."""
        function = self.names.scope(parameter)
        if not isinstance(function, Function):
            return []
        taken = function.args
        defaults = zip(reversed([*taken.posonlyargs, *taken.args]), reversed(taken.defaults), strict=False)
        optional = zip(taken.kwonlyargs, taken.kw_defaults, strict=True)
        found = [value for one, value in (*defaults, *optional) if one is parameter and value]
        owner = next(self.names.parents(function), None)
        if isinstance(owner, ast.ClassDef) and function.name == "__init__":
            calls = self._called.get(owner.name, [])
        else:
            calls = [call for call in self._called.get(function.name, ()) if function in self.bound(call.func)]
        if isinstance(owner, ast.ClassDef) and function.name == "forward":
            calls = self._of_modules().get(owner, []) + calls
        pairs = (pair for call in calls for pair in self.arguments(call, function))
        return found + [value for name, value in pairs if name == parameter.arg]

    def arguments(self, call: ast.Call, function: Function) -> list[tuple[str, ast.expr]]:
        """Return the names of a function's parameters and what a call gives for them."""
        parameters = [*function.args.posonlyargs, *function.args.args][bool(self.names.method(function)) :]
        pairs = [(one.arg, value) for one, value in zip(parameters, call.args, strict=False)]
        return pairs + [(word.arg, word.value) for word in self.unpacked(call).keywords if word.arg]

    def unpacked(self, call: ast.Call) -> ast.Call:
        """Return a call with the items of `**options` as keywords, where the file makes that dict."""
        words: list[ast.keyword] = []
        for word in call.keywords:
            made = self.origins(word.value) if word.arg is None else []
            one = made[0] if len(made) == 1 else word
            if isinstance(one, ast.Call) and last_name(one.func) == "dict":
                words += one.keywords
            elif isinstance(one, ast.Dict):
                items = zip(one.keys, one.values, strict=True)
                words += [ast.keyword(str(key.value), value) for key, value in items if isinstance(key, ast.Constant)]
            else:
                words.append(word)
        return call if words == call.keywords else ast.Call(call.func, call.args, words)

    def _of_modules(self) -> dict[ast.ClassDef, list[ast.Call]]:
        """Return the calls `self.part(x)` and `part(x)` by the class of the file that the part is made of."""
        if self._parts is None:
            self._parts = {}
            for call in (one for calls in self._called.values() for one in calls):
                own = isinstance(call.func, ast.Attribute) and self.names.itself(call.func.value)
                for value in self.bound(call.func) if own or isinstance(call.func, ast.Name) else ():
                    for kind in self.names.definitions(value.func) if isinstance(value, ast.Call) else ():
                        if isinstance(kind, ast.ClassDef):
                            self._parts.setdefault(kind, []).append(call)
        return self._parts

    def sources(self, node: ast.AST) -> list[ast.AST]:
        """Return the expressions that a name, an attribute or a call of the file directly takes its value from."""
        if isinstance(node, ast.Call):
            function = self.definition(node)
            parts = own(function) if function is not None else ()
            return [one.value for one in parts if isinstance(one, ast.Return) and one.value is not None]
        return [v for one in self.bound(node) for v in (self.given(one) if isinstance(one, ast.arg) else [one])]

    # ---- what a value is

    def kinds(self, node: ast.AST) -> list[str]:
        """Return the full names of the calls that make an expression's values, and of its annotations."""
        out = []
        for origin in self.origins(node):
            if isinstance(origin, ast.Call):
                out.append(self.names.dotted(origin.func) or ast.unparse(origin.func))
            elif isinstance(origin, (ast.arg, ast.AnnAssign)) and origin.annotation is not None:
                out.append(self.names.dotted(origin.annotation))
        return [kind for kind in out if kind]

    def constants(self, node: ast.AST) -> list[object]:
        """Return the constants and names of torch that an expression's values are; [None] where one is neither."""
        out: list[object] = []
        for origin in self.origins(node):
            dotted = self.names.dotted(origin)
            if not isinstance(origin, ast.Constant) and not dotted.startswith("torch."):
                return [None]
            out.append(origin.value if isinstance(origin, ast.Constant) else dotted)
        return out

    def region(self, node: ast.AST) -> LintedRegion | None:
        """Return the region that entering an expression's value, or being decorated by it, opens; None for none."""
        for origin in (node, *self.origins(node)):
            made = region(self.names, self.unpacked(origin) if isinstance(origin, ast.Call) else origin)
            if made is not None and isinstance(origin, ast.Call):
                return replace(made, call=origin)
            function: ast.AST | None = origin
            if isinstance(origin, ast.Call):
                for partial in self.origins(origin.func):
                    if isinstance(partial, ast.Call) and self.names.dotted(partial.func) == "functools.partial":
                        words = [*self.unpacked(partial).keywords, *self.unpacked(origin).keywords]
                        made = region(self.names, ast.Call(partial.args[0], [*partial.args[1:], *origin.args], words))
                        if made is not None:
                            return replace(made, call=origin)
                function = self.definition(origin)
            if isinstance(function, Function):
                made = self._opened_by(function)
                if made is not None:
                    return made
        return None

    def _opened_by(self, function: Function) -> LintedRegion | None:
        """Return the region that a context manager yields in, or that a decorator of the file calls its function in."""
        taken = {one.arg for one in function.args.args}
        manager = any(self.names.dotted(one) in _CONTEXT for one in function.decorator_list)
        for node in ast.walk(function):
            inside = isinstance(node, ast.Yield) and manager
            inside |= isinstance(node, ast.Call) and not manager and last_name(node.func) in taken
            for parent in self.names.parents(node) if inside else ():
                for item in parent.items if isinstance(parent, With) else ():
                    made = self.region(item.context_expr)
                    if made is not None and parent is not function:
                        return made
                if parent is function:
                    break
        return None


def last_name(expression: ast.AST) -> str:
    """Return the last name of `a.b.c`, or the key of `a["c"]`."""
    if isinstance(expression, ast.Subscript):
        key = expression.slice
        return str(key.value) if isinstance(key, ast.Constant) else last_name(expression.value)
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""
