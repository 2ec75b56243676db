"""The order of regions, scalers, backward passes and optimizers in training code.

A function becomes paths of events. A loop counts as one iteration, functions and methods of the same file are inlined,
and a path takes the same side of the same condition everywhere.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from ampcheck.tools.lint.names import LOW, Function, LintedRegion, Names, Option, With, region
from ampcheck.tools.lint.values import SAME, Values, last_name

Thing: TypeAlias = tuple[ast.AST, str]
"""An object of the program: the function or class that binds it, and its expression there."""

_DEPTH = 3
_MOST_PATHS = 256
_SCALER_NAME = re.compile(r"(^|_)(grad_?)?scaler(_|$)", re.IGNORECASE)
_OPTIMIZER = re.compile(r"(^|_)(opt|optim|optimizer|optimiser)(_?[a-z0-9]{1,4}|_\w+)?$", re.IGNORECASE)
_NO_OPTIMIZER = re.compile(r"sched|scaler|option|^lr_|_lr$", re.IGNORECASE)
_AMP = re.compile(r"amp|scaler|fp16|bf16|half|mixed|autocast", re.IGNORECASE)
_AMP_MODULES = ("amp", "amp.grad_scaler", "cuda.amp", "cuda.amp.grad_scaler", "cpu.amp")
GRAD_SCALERS = tuple(f"torch.{module}.GradScaler" for module in _AMP_MODULES)
_CLIPPING = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grads_with_norm_")
_CLIPS = tuple(f"torch.nn.utils.{module}{name}" for module in ("", "clip_grad.") for name in _CLIPPING)
_CLIP_METHODS = ("clip_grad_norm_", "clip_grad_value_")
_CLAMPS = ("clamp", "clamp_", "clip", "clip_")
_FACTORS = ("mul_", "div_")
_THREADS = ("threading.Thread", "concurrent.futures.ThreadPoolExecutor", "multiprocessing.pool.ThreadPool")
MODEL = re.compile(r"model|net|module|forward|^(g|d|f|m|gen|disc|encoder|decoder)$", re.IGNORECASE)
"""Names of models, and of what runs them."""
_NO_GRAD = ("torch.no_grad", "torch.inference_mode")


@dataclass(frozen=True, slots=True)
class LoopEvent:
    """A call that matters. `regions`: the regions around it, the innermost last. `what`: its object, if any."""

    kind: str
    node: ast.AST
    regions: tuple[LintedRegion, ...] = ()
    what: Thing | None = None
    scaler: Thing | None = None

    @property
    def region(self) -> LintedRegion | None:
        """Return the enabled region that it runs in."""
        return self.regions[-1] if self.regions and not self.regions[-1].disabled else None


@dataclass(frozen=True, slots=True)
class Path:
    """One way through a function. `choices`: the sides of conditions. `ended`: by "return", "loop" or not."""

    events: tuple[LoopEvent, ...] = ()
    choices: frozenset[tuple[str, bool]] = frozenset()
    ended: str = ""


@dataclass(frozen=True, slots=True)
class _Frame:
    """The function that is walked: its regions, what its parameters are, the functions around it in the call."""

    regions: tuple[LintedRegion, ...] = ()
    known: dict[Thing, Thing] = field(default_factory=dict)
    calls: tuple[ast.AST, ...] = ()
    gradients: bool = True


class Walk:
    """The walk over one file."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.values = Values(names)
        self.too_many = False
        self._known: dict[ast.AST, tuple[ast.Call, ...]] = {}
        self._dull: dict[ast.AST, bool] = {}
        self.halved = dict(_halved(self))
        """The modules of the file that are cast to lower precision, and where."""
        self._halved_origins = {
            thing: {one for one in self.values.origins(cast) if isinstance(one, ast.Call)}
            for thing, cast in self.halved.items()
        }

    def scalers(self) -> list[ast.Call]:
        """Return the calls of the file that make GradScalers."""
        calls = (node for node in ast.walk(self.names.tree) if isinstance(node, ast.Call))
        return [call for call in calls if self.names.dotted(call.func) in GRAD_SCALERS]

    @cached_property
    def always_scales(self) -> bool:
        """Return whether the file makes GradScalers, and none of them can be disabled."""
        words = [word for call in self.scalers() for word in call.keywords if word.arg in (None, "enabled")]
        known = all(isinstance(word.value, ast.Constant) and word.value.value is True for word in words)
        return known and bool(self.scalers())

    @cached_property
    def mentions_scale(self) -> bool:
        """Return whether the file says anything of a scale of losses."""
        return bool(re.search(r"scaler|\.scale\(|loss_scale", ast.unparse(self.names.tree), re.IGNORECASE))

    def paths(self, root: ast.Module | Function) -> list[Path]:
        """Return the paths through a function, or through a file's own statements; none where there are too many.

        `too_many` then says whether they have a backward pass, a clip or a step at all.
        """
        self.too_many = False
        self._kinds: set[str] = set()
        found = self._called(root, _Frame(calls=(root,)), [Path()])
        if not self.too_many:
            return found
        self.too_many = bool(self._kinds & {"backward", "scaled-backward", "unscale_", "clip", "step", "alone"})
        return []

    def thing(self, expression: ast.expr) -> Thing:
        """Return the object that an expression names."""
        key = ast.unparse(expression)
        root = expression
        while isinstance(root, (ast.Attribute, ast.Subscript, ast.Call)):
            root = root.func if isinstance(root, ast.Call) else root.value
        owner = self.names.itself(root)
        if owner is not None:
            return owner, key
        bound = self.names.lookup(key.partition(".")[0], expression)
        return bound[0] if bound else self.names.tree, key

    def constants(self, option: Option) -> list[object]:
        """Return the values that an option of a region can have; [None] where they are not known."""
        return [option.value] if option.expression is None else self.values.constants(option.expression)

    def no_grad(self, expression: ast.expr) -> bool:
        """Return whether a context or a decorator switches gradients off."""
        return self.names.dotted(getattr(expression, "func", expression)) in _NO_GRAD

    def scaler(self, expression: ast.expr) -> bool:
        """Return whether an expression is a GradScaler."""
        kinds = self.values.kinds(expression)
        if kinds:
            return any(name in GRAD_SCALERS for name in kinds)
        return not isinstance(expression, ast.Call) and bool(_SCALER_NAME.search(last_name(expression)))

    def optimizer(self, expression: ast.expr) -> bool:
        """Return whether an expression is an optimizer."""
        for name in self.values.kinds(expression):
            if name.startswith("torch.optim."):
                return "lr_scheduler" not in name and "swa_utils" not in name
        last = last_name(expression)
        return bool(_OPTIMIZER.search(last)) and not _NO_OPTIMIZER.search(last)

    def _called(self, function: ast.AST, frame: _Frame, paths: list[Path]) -> list[Path]:
        for decorator in getattr(function, "decorator_list", []):
            made = self.values.region(decorator)
            if made is not None:
                frame, paths = self._enter(made, function, frame, paths)
            if self.no_grad(decorator):
                frame = replace(frame, gradients=False)
        found = self._body(getattr(function, "body", []), frame, paths)
        return [replace(path, ended="") for path in found]

    def _enter(self, made: LintedRegion, block: ast.AST, frame: _Frame, paths: list[Path]) -> tuple[_Frame, list[Path]]:
        """Enter a region for a block."""
        frame = replace(frame, regions=(*frame.regions, made))
        if frame.gradients and not made.disabled:
            paths = self._emit(paths, LoopEvent("region", made.call, frame.regions, (block, "")))
        return frame, paths

    def _body(self, statements: Iterable[ast.stmt], frame: _Frame, paths: list[Path]) -> list[Path]:
        for statement in statements:
            if self._left(statement):
                frame = replace(frame, regions=frame.regions[:-1])
            for made in self._entered(statement):
                frame, paths = self._enter(made, next(self.names.parents(statement), statement), frame, paths)
            done = [path for path in paths if path.ended]
            open_ = [path for path in paths if not path.ended]
            if not open_:
                return done
            paths = list(dict.fromkeys([*done, *self._statement(statement, frame, open_)]))
            if len(paths) > _MOST_PATHS:
                self.too_many = True
                paths = paths[:1]
        return paths

    def _left(self, statement: ast.stmt) -> bool:
        """Return whether a statement is `region.__exit__(...)`."""
        left = getattr(getattr(statement, "value", None), "func", None)
        if not isinstance(left, ast.Attribute) or left.attr != "__exit__":
            return False
        return self.values.region(left.value) is not None

    def _entered(self, statement: ast.stmt) -> Iterator[LintedRegion]:
        """Yield the regions that `stack.enter_context(...)` or `region.__enter__()` opens for what follows."""
        call = getattr(statement, "value", None)
        if isinstance(statement, ast.For) and all(isinstance(one, ast.Expr) for one in statement.body):
            for inner in statement.body:  # `for context in contexts: stack.enter_context(context)`
                yield from self._entered(inner)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            entered = {"enter_context": call.args[0] if call.args else None, "__enter__": call.func.value}
            if (one := entered.get(call.func.attr)) is not None and (made := self.values.region(one)) is not None:
                yield made
        function = self.values.definition(call) if isinstance(call, ast.Call) else None
        if function is not None and "enter_context(" in ast.unparse(function):  # on the stack that it is given
            taken = {one.arg for one in function.args.args}
            for inner in function.body:
                stack = getattr(getattr(getattr(inner, "value", None), "func", None), "value", None)
                if isinstance(stack, ast.Name) and stack.id in taken:
                    yield from self._entered(inner)

    def _statement(self, statement: ast.stmt, frame: _Frame, paths: list[Path]) -> list[Path]:
        if isinstance(statement, Function | ast.ClassDef) or self._is_dull(statement):
            return paths
        if isinstance(statement, ast.If):
            return self._branch(statement, frame, paths)
        if isinstance(statement, ast.Expr) and isinstance(choice := statement.value, ast.IfExp):
            sides: list[list[ast.stmt]] = [[ast.Expr(side)] for side in (choice.body, choice.orelse)]
            return self._branch(ast.If(choice.test, *sides), frame, paths)
        if isinstance(statement, With):
            return self._with(statement, frame, paths)
        if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
            head = statement.test if isinstance(statement, ast.While) else statement.iter
            before = self._expression(head, frame, paths)
            paths = self._body(statement.body, frame, before)
            twice = [replace(path, ended="") for path in paths if _again(path, before, statement)]
            paths = [path for path in paths if not _again(path, before, statement)]
            paths += self._body(statement.body, frame, twice) if twice else []
            paths = [replace(path, ended="" if path.ended == "loop" else path.ended) for path in paths]
            return self._body(statement.orelse, frame, paths)
        if isinstance(statement, (ast.Try, ast.TryStar)):
            return self._body([*statement.body, *statement.orelse, *statement.finalbody], frame, paths)
        if isinstance(statement, ast.Match):
            return [path for case in statement.cases for path in self._body(case.body, frame, paths)] or paths
        paths = self._expression(statement, frame, paths)
        if isinstance(statement, ast.Assign):
            paths = self._bound(statement, frame, paths)
        if isinstance(statement, ast.Raise):
            return []
        ended = "return" if isinstance(statement, ast.Return) else ""
        ended = "loop" if isinstance(statement, (ast.Break, ast.Continue)) else ended
        return [replace(path, ended=ended) for path in paths] if ended else paths

    def _branch(self, statement: ast.If, frame: _Frame, paths: list[Path]) -> list[Path]:
        out: list[Path] = []
        for path in self._expression(statement.test, frame, paths):
            found: list[Path] = []
            for choices, side in _decided(statement.test, path.choices):
                body = statement.body if side else statement.orelse
                found += self._body(body, frame, [replace(path, choices=choices)])
            same = all(other.events == path.events and not other.ended for other in found)
            out += [path] if same and found else found
        return out

    def _with(self, statement: With, frame: _Frame, paths: list[Path]) -> list[Path]:
        for item in statement.items:
            made = self.values.region(item.context_expr)
            if made is not None:
                frame, paths = self._enter(made, statement, frame, paths)
            elif self.no_grad(item.context_expr):
                frame = replace(frame, gradients=False)
            else:
                paths = self._expression(item.context_expr, frame, paths)
        return self._body(statement.body, frame, paths)

    def _bound(self, statement: ast.Assign, frame: _Frame, paths: list[Path]) -> list[Path]:
        target, scaled = statement.targets[0], self._scaled(statement.value)
        if not isinstance(target, ast.Name) or not self._of_scaled(statement):
            return paths
        kind = "scaled" if scaled else "bound"
        return self._emit(paths, LoopEvent(kind, statement, frame.regions, self.thing(target), scaled))

    def _scaled(self, value: ast.AST) -> Thing | None:
        """Return the scaler of `scaler.scale(loss)`."""
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or value.func.attr != "scale":
            return None
        return self.thing(value.func.value) if self.scaler(value.func.value) else None

    def _emit(self, paths: list[Path], event: LoopEvent) -> list[Path]:
        self._kinds.add(event.kind)
        return [replace(path, events=(*path.events, event)) for path in paths]

    def _expression(self, node: ast.AST, frame: _Frame, paths: list[Path]) -> list[Path]:
        """Add the events of the calls in an expression, the innermost first."""
        for call in self._calls(node):
            paths = self._call(call, frame, paths)
        return paths

    def _calls(self, node: ast.AST) -> tuple[ast.Call, ...]:
        """Return the calls in an expression that may be events, the innermost first."""
        if node not in self._known:
            inside = () if isinstance(node, ast.Lambda) else ast.iter_child_nodes(node)
            calls = [call for child in inside for call in self._calls(child)]
            if isinstance(node, ast.Call) and self._matters(node):
                calls.append(node)
            self._known[node] = tuple(calls)
        return self._known[node]

    def _matters(self, call: ast.Call) -> bool:
        if self.halved:
            return True
        function = self.values.definition(call)
        if function is not None:
            return not self._is_dull(function)
        if self._clips(call) or self.names.dotted(call.func) == "torch.autograd.backward":
            return True
        base, attribute = _method(call)
        if attribute == "backward" or self.scaler(base) or (attribute == "step" and self.optimizer(base)):
            return True
        return self.lossy(call) or self.starts(call) or self._given_scaler(call)

    def _given_scaler(self, call: ast.Call) -> bool:
        """Return whether a call is given a scaler: what is called may unscale, step and update."""
        return any(self.scaler(argument) for argument in (*call.args, *(word.value for word in call.keywords)))

    def _is_dull(self, node: ast.AST) -> bool:
        """Return whether a statement, or a call of a function, changes no path."""
        if node not in self._dull:
            self._dull[node] = True  # while it is looked at: a function that calls itself adds nothing
            parts = list(ast.walk(node))
            ends = (ast.Return, ast.Break, ast.Continue, ast.Raise)
            function = isinstance(node, Function)
            self._dull[node] = not any(
                (isinstance(part, ends) and not function)
                or (isinstance(part, ast.Call) and (region(self.names, part) is not None or self._matters(part)))
                or (isinstance(part, ast.withitem) and self.values.region(part.context_expr) is not None)
                or (isinstance(part, ast.Assign) and self._of_scaled(part))
                for part in parts
            )
        return self._dull[node]

    def _of_scaled(self, statement: ast.Assign) -> bool:
        """Return whether what a statement binds is a scaled loss, there or elsewhere."""
        return any(map(self._scaled, (statement.value, *self.values.bound(statement.targets[0]))))

    def _call(self, call: ast.Call, frame: _Frame, paths: list[Path]) -> list[Path]:
        def known(expression: ast.expr) -> Thing:
            thing = self.thing(expression)
            if isinstance(expression, ast.Subscript) and (key := frame.known.get(self.thing(expression.slice))):
                thing = thing[0], f"{ast.unparse(expression.value)}[{key[1]}]"
            return frame.known.get(thing, thing)

        def event(kind: str, what: Thing | None = None, scaler: Thing | None = None) -> list[Path]:
            return self._emit(paths, LoopEvent(kind, call, frame.regions, what, scaler))

        if self.halved and frame.regions and frame.gradients and isinstance(call.func, (ast.Name, ast.Attribute)):
            made = {origin for origin in self.values.origins(call.func) if isinstance(origin, ast.Call)}
            same = [thing for thing, origins in self._halved_origins.items() if made & origins]
            called = known(call.func) if known(call.func) in self.halved else next(iter(same), None)
            paths = event("call", called) if called else paths
        function = self.values.definition(call)
        if function is not None and function not in frame.calls and len(frame.calls) <= _DEPTH:
            pairs = self.values.arguments(call, function)
            objects = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant)
            given: dict[Thing, Thing] = {(function, n): known(v) for n, v in pairs if isinstance(v, objects)}
            inner = replace(frame, known={**frame.known, **given}, calls=(*frame.calls, function))
            return self._called(function, inner, paths)
        if self.starts(call):
            return event("thread")
        if self._clips(call):
            return event("clip")
        if self.lossy(call):
            paths = event("loss") if frame.gradients else paths
        if self.names.dotted(call.func) == "torch.autograd.backward" and call.args:
            return self._backward(call, call.args[0], frame, paths)
        base, attribute = _method(call)
        if attribute == "backward" and not call.args and ast.unparse(base) not in ("self", "super()"):
            return self._backward(call, base, frame, paths)
        if self.scaler(base):
            optimizer = known(call.args[0]) if call.args else None
            if attribute in ("unscale_", "step") and optimizer:
                return event(attribute, optimizer, known(base))
            if attribute == "update":
                return event("update", scaler=known(base))
            return paths if attribute in ("scale", "get_scale", "is_enabled", "state_dict") else event("unknown")
        if attribute == "step" and self.optimizer(base):
            return event("alone", known(base))
        return event("unknown") if self._given_scaler(call) else paths

    def _clips(self, call: ast.Call) -> bool:
        """Return whether a call clips gradients, by PyTorch's functions, a method of a model, or by hand."""
        if self.names.dotted(call.func) in _CLIPS:
            return True
        if not isinstance(call.func, ast.Attribute):
            return False
        given = [call.func.value, *call.args[:1]]
        by_hand = call.func.attr in _CLAMPS or (call.func.attr in _FACTORS and self._after_norm(call))
        if by_hand and any(re.search(r"\.grad\b", ast.unparse(one)) for one in (*given, *self._iterated(given[0]))):
            return True
        return call.func.attr in _CLIP_METHODS and not self.names.dotted(call.func)

    def _iterated(self, node: ast.AST) -> list[ast.expr]:
        """Return what the lists are made of that a name goes through in a loop."""
        loops = [one for one in self.values.bound(node) if isinstance(one, ast.For)]
        made = (origin for one in loops for origin in self.values.origins(one.iter))
        return [one.elt for one in made if isinstance(one, ast.ListComp)]

    def _after_norm(self, call: ast.Call) -> bool:
        """Return whether the function around a product takes a norm, and multiplies by no scale."""
        around = next((one for one in self.names.parents(call) if isinstance(one, ast.FunctionDef)), None)
        takes = around is not None and "norm(" in ast.unparse(around)
        return takes and not any(re.search("scale|inv", ast.unparse(one), re.IGNORECASE) for one in call.args)

    def starts(self, call: ast.Call) -> bool:
        """Return whether a call gives a thread a function of the file that runs a model, and enters no region."""
        words = {word.arg: word.value for word in call.keywords}
        run: list[ast.AST] = []
        if self.names.dotted(call.func) == _THREADS[0] and "target" in words:
            run = self.values.bound(words["target"])
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ("submit", "map") and call.args:
            pooled = set(self.values.kinds(call.func.value)) & set(_THREADS)
            run = self.values.bound(call.args[0]) if pooled else []
        else:
            kinds = [one for one in self.names.definitions(call.func) if isinstance(one, ast.ClassDef)]
            mine = [one for one in kinds if any(self.names.dotted(base) == _THREADS[0] for base in one.bases)]
            run = [method for one in mine for method in self.names.attribute(one, "run")]
        functions = [one for one in run if isinstance(one, ast.FunctionDef)]
        plain = (one for one in functions if not re.search(r"autocast|amp", ast.unparse(one)))
        calls = [part.func for one in plain for part in ast.walk(one) if isinstance(part, ast.Call)]
        made = (kind for called in calls for kind in self.values.kinds(called))
        return any(MODEL.search(last_name(one)) for one in calls) or any(one.startswith("torch.nn.") for one in made)

    def lossy(self, call: ast.Call) -> bool:
        """Return whether a call computes a loss."""
        names = [self.names.dotted(call.func), *self.values.kinds(call.func)]
        return any(re.match(r"torch\.nn\..*(loss|cross_entropy|Loss|kl_div)(_with_logits)?$", name) for name in names)

    def _backward(self, call: ast.Call, base: ast.expr, frame: _Frame, paths: list[Path]) -> list[Path]:
        out = []
        for path in paths:
            scaler = self._scaled(base)
            for event in reversed(path.events if scaler is None and isinstance(base, ast.Name) else ()):
                if event.kind in ("scaled", "bound") and event.what == self.thing(base):
                    scaler = event.scaler
                    break
            scaler = frame.known.get(scaler, scaler) if scaler else None
            kind = "scaled-backward" if scaler else "backward"
            out += self._emit([path], LoopEvent(kind, call, frame.regions, None, scaler))
        return out


def _method(call: ast.Call) -> tuple[ast.expr, str]:
    """Return the object whose method a call calls, and the method's name; the function and "" for other calls."""
    return (call.func.value, call.func.attr) if isinstance(call.func, ast.Attribute) else (call.func, "")


def _again(path: Path, before: list[Path], loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Return whether a second iteration shows more: one that unscales and never updates, or updates for each step."""
    new = path.events[min(len(other.events) for other in before) :]
    kinds = {event.kind for event in new}
    if "unknown" in kinds or path.ended == "return":
        return False
    if {"step", "update"} <= kinds and "scaled-backward" not in kinds:
        return True
    target = loop.test if isinstance(loop, ast.While) else loop.target
    targets = {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    unscaled = [event.what for event in new if event.kind == "unscale_"]
    fixed = all(what is None or what[1].partition(".")[0] not in targets for what in unscaled)
    return bool(unscaled) and fixed and not {"update", "step"} & kinds


def _decided(
    test: ast.expr, choices: frozenset[tuple[str, bool]]
) -> Iterator[tuple[frozenset[tuple[str, bool]], bool]]:
    """Yield the sides that a condition can take, with what is then known of its parts."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from ((known, not side) for known, side in _decided(test.operand, choices))
    elif isinstance(test, ast.BoolOp):
        end = isinstance(test.op, ast.Or)
        *before, last = test.values
        rest: ast.expr = ast.BoolOp(test.op, before) if len(before) > 1 else before[0]
        for known, side in _decided(rest, choices):
            if side == end:
                yield known, side
            else:
                yield from _decided(last, known)
    elif isinstance(test, ast.Constant):
        yield choices, bool(test.value)
    else:
        atom, positive = _atom(test)
        for side in (True, False):
            if (atom, not side) not in choices:
                yield choices | {(atom, side)}, side == positive


def _atom(test: ast.expr) -> tuple[str, bool]:
    """Return the name of a condition, one for all that ask whether mixed precision is on, and its positive side."""
    positive = True
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
        positive = isinstance(test.ops[0], (ast.IsNot, ast.NotEq))
        other = test.comparators[0]
        if isinstance(other, ast.Constant) and other.value is None:
            test = test.left
        elif isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
            return f"{ast.unparse(test.left)} != {ast.unparse(other)}", positive
    text = ast.unparse(test)
    if re.search(r"(^|[._])(no|without|disable)_(?=[a-z])", text):
        positive = not positive
    return ("mixed precision" if _AMP.search(text) and not isinstance(test, ast.Compare) else text), positive


_PARTS = ("modules", "children", "named_modules", "named_children")
_WIDE = ("torch.float32", "torch.float", "torch.float64", "torch.double")


def _halved(walk: Walk) -> Iterator[tuple[Thing, ast.Call]]:
    """Yield the modules that are cast to lower precision and whose parameters are trained."""
    values, nodes = walk.values, list(ast.walk(walk.names.tree))
    alone: dict[Thing | ast.AST, ast.Call] = {}
    for one in nodes:
        if isinstance(one, ast.Expr) and (low := _cast(values, one.value, LOW)):
            model = low[0]
            for made in values.bound(model):  # `for layer in model.modules(): layer.half()`
                part = made.iter if isinstance(made, ast.For) else None
                if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in _PARTS:
                    model = part.func.value
            alone |= dict.fromkeys([walk.thing(model), *values.origins(model)], low[1])
    for node in nodes:
        if not isinstance(node, ast.Attribute) or node.attr != "parameters":
            continue
        waiting, seen = list[ast.AST]([node.value]), set[ast.AST]()
        while waiting:
            made = waiting.pop()
            if made in seen or _cast(values, made, _WIDE):
                continue
            seen.add(made)
            low = _cast(values, made, LOW)
            if low is not None:
                yield walk.thing(node.value), low[1]
            elif isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr in SAME:
                waiting.append(made.func.value)
            elif isinstance(made, (ast.Name, ast.Attribute)) and walk.thing(made) in alone:
                yield walk.thing(node.value), alone[walk.thing(made)]
            elif isinstance(made, ast.Call) and made in alone:
                yield walk.thing(node.value), alone[made]
            elif isinstance(made, (ast.Name, ast.Attribute, ast.Call)):
                waiting += values.sources(made)
                waiting += _parts(walk, made)


def _parts(walk: Walk, made: ast.AST) -> list[ast.AST]:
    """Return what an instance of a class of the file keeps, where it trains all of it, and what a Sequential is of."""
    if not isinstance(made, ast.Call) or "requires_grad" in ast.unparse(walk.names.tree):
        return []
    kept = [value for kind in walk.names.definitions(made.func) for value in walk.names.kept(kind)]
    return kept + (list(made.args) if walk.names.dotted(made.func) == "torch.nn.Sequential" else [])


def _cast(values: Values, node: ast.AST, dtypes: tuple[str, ...]) -> tuple[ast.expr, ast.Call] | None:
    """Return the object that a call casts to one of some dtypes, and the call; None where it casts to none of them."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    made = values.names.dotted(node.func).startswith("torch.nn.")  # with dtype=
    words = [word.value for word in node.keywords if not made or word.arg == "dtype"]
    words += node.args if node.func.attr == "to" else []
    to = [name for value in words for name in values.constants(value)] if made or node.func.attr == "to" else []
    return (node.func.value, node) if {f"torch.{node.func.attr}", *to} & set(dtypes) else None
