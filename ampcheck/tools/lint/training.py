"""Mistakes in eager training code, found by reading it.

A mistake of two events, such as a backward pass and a clip, counts only where no path with both is right.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from ampcheck.tools.lint.events import GRAD_SCALERS, MODEL, LoopEvent, Path, Walk
from ampcheck.tools.lint.names import CUSTOM_FWD, LOW, Function, LintedRegion, Names, With, own, region
from ampcheck.tools.lint.values import last_name

Mistake: TypeAlias = tuple[ast.AST, str]
"""Where a mistake is, and its name in the catalogue."""

_ON = re.compile(
    r"^(use|enable|with|do)?_?(amp|autocast|mixed_precision|mixed|fp16|bf16|half)(_enabled)?$", re.IGNORECASE
)
_FUNCTIONS = {"torch.autograd.Function", "torch.autograd.function.Function"}
_RESHAPES = (
    *("softmax", "log_softmax", "sigmoid", "logsigmoid", "view", "reshape", "flatten", "transpose", "permute"),
    *("squeeze", "unsqueeze", "contiguous"),
)
_OLD = tuple(f"torch.cuda.amp.{name}" for name in ("autocast", "GradScaler", "custom_fwd", "custom_bwd"))
VERSION = r"version|hasattr|(?i:torch_?(greater|ge|gte|\d))"
CUDA = rf"is_cuda|['\"]cuda|{VERSION}"
DEPRECATED = (*_OLD, "torch.cpu.amp.autocast", "torch.cpu.amp.GradScaler")
"""What torch.amp replaced."""


def mistakes(names: Names, unfollowed: list[str]) -> Iterator[Mistake]:
    """Yield the mistakes in a file. `unfollowed` takes the names of functions that have too many paths to follow."""
    walk = Walk(names)
    for node in ast.walk(names.tree):
        yield from _alone(walk, node)
    for node in ast.walk(names.tree):
        if isinstance(node, ast.Module | Function):
            yield from _ordered(walk, node)
            if walk.too_many:
                unfollowed.append(getattr(node, "name", "the file's own statements"))
    yield from _inherited(names)


def _inherited(names: Names) -> Iterator[Mistake]:
    """Yield the mistakes of methods that a class inherits from one of the file, and whose callees it overrides."""
    for kind in [node for node in ast.walk(names.tree) if isinstance(node, ast.ClassDef)]:
        for base in [one for expression in kind.bases for one in names.definitions(expression)]:
            own = {node.name for node in kind.body if isinstance(node, Function)}
            if isinstance(base, ast.ClassDef) and base is not kind and own - {"__init__"}:
                names.acting = {base: kind}
                walk = Walk(names)
                for method in base.body:
                    if isinstance(method, Function) and method.name not in own:
                        yield from _ordered(walk, method)
                names.acting = {}


def _ordered(walk: Walk, function: ast.Module | Function) -> Iterator[Mistake]:
    # Where mixed precision is not wanted, the scaler is disabled.
    off = ("mixed precision", False)
    paths = [path for path in walk.paths(function) if walk.always_scales or off not in path.choices]
    found = {mistake for path in paths for mistake in _on_path(walk, path)}
    for rule, event, cause in found:
        least = 2 if event == cause and rule == "unscale-twice" else 1  # the same line twice, in a loop
        both = (path for path in paths if path.events.count(event) >= least and cause in path.events)
        if all((rule, event, cause) in set(_on_path(walk, path)) for path in both):
            yield event.node, rule


def _on_path(walk: Walk, path: Path) -> Iterator[tuple[str, LoopEvent, LoopEvent]]:
    """Yield the mistakes on a path: the rule, the event, and the event that makes it one."""
    scaled: LoopEvent | None = None  # the backward pass whose gradients have the scale
    last: dict[object, LoopEvent] = {}  # the last scaled backward pass of each scaler
    updates: dict[object, LoopEvent] = {}  # its update after that
    unscaled: dict[object, LoopEvent] = {}
    stepped: set[object] = set()
    regions: list[LoopEvent] = []
    for event in path.events:
        if event.region is not None:
            if event.kind in ("backward", "scaled-backward"):
                yield "backward-in-region", event, event
            if event.kind in ("alone", "step"):
                yield "optimizer-in-region", event, event
            if event.kind == "thread":
                yield "thread-without-region", event, event
            if event.kind == "call" and event.what in walk.halved:
                yield "half-model-in-region", event, event
        if event.kind in ("backward", "scaled-backward"):
            yield from (("float32-region", made, made) for made in _lossy(walk, regions, event, "float32"))
        if event.kind == "region":
            regions.append(event)
        elif event.kind == "scaled-backward":
            scaled = last[event.scaler] = event
            updates.pop(event.scaler, None)
            stepped.clear()
            low = _lossy(walk, regions, event, "bfloat16") if walk.always_scales else []
            yield from (("scaler-with-bf16", event, made) for made in low)
        elif event.kind == "backward":
            scaled = None
            low = [] if walk.mentions_scale else _lossy(walk, regions, event, "float16")
            yield from (("fp16-without-scaler", event, made) for made in low)
        elif event.kind == "unscale_":
            if event.what in unscaled:
                yield "unscale-twice", event, unscaled[event.what]
            unscaled[event.what] = event
            scaled = None
        elif event.kind == "loss" and event.region is None:
            made = _low_output(walk, event, regions)
            if made is not None:
                yield "loss-outside-region-in-low", event, made
        elif event.kind == "clip" and scaled is not None and not stepped:
            yield "clip-before-unscale", event, scaled
        elif event.kind == "alone" and scaled is not None and event.what not in stepped:
            yield "step-outside-scaler", event, scaled
        elif event.kind == "step":
            if event.scaler in updates and event.scaler in last:
                yield "update-between-steps", updates[event.scaler], event
            stepped.add(event.what)
        elif event.kind == "update":
            updates[event.scaler], scaled = event, None
            unscaled.clear()
        elif event.kind == "unknown":
            scaled = None
            for known in (last, updates, unscaled):
                known.clear()


def _low_output(walk: Walk, loss: LoopEvent, regions: list[LoopEvent]) -> LoopEvent | None:
    """Return the region whose output, in lower precision, a loss takes."""
    call = loss.node
    for given in [_reshaped(walk, one) for one in (call.args[:1] if isinstance(call, ast.Call) else ())]:
        made = _made(walk, given) if isinstance(given, (ast.Name, ast.Attribute)) else []
        for event in regions:
            block = event.what[0] if event.what else None
            items = [(one.value, one.slice) if isinstance(one, ast.Subscript) else (one, None) for one in made]
            calls = [(value, item) for value, item in items if isinstance(value, ast.Call)]
            inside = [pair for pair in calls if any(parent is block for parent in walk.names.parents(pair[0]))]
            # A model's output: what a function or a method of PyTorch returns may be in float32.
            plain = [pair for pair in inside if not walk.names.dotted(pair[0].func) and _raw(walk, *pair)]
            if made and len(plain) == len(made):
                return event
    return None


def _made(walk: Walk, value: ast.AST, depth: int = 0) -> list[ast.AST]:
    """Return what a value is made by: of a function of the file whose name is no model's, what it returns."""
    made: list[ast.AST] = []
    for one in walk.values.bound(value) if isinstance(value, (ast.Name, ast.Attribute)) else [value]:
        called = walk.values.definition(one) if isinstance(one, ast.Call) and depth < 3 else None
        model = called is not None and (called.name == "forward" and walk.names.method(called))
        returns = walk.values.sources(one) if called is not None and not model else []
        made += [origin for inner in returns for origin in _made(walk, inner, depth + 1)] or [one]
    return made


def _reshaped(walk: Walk, value: ast.expr) -> ast.expr:
    """Return the value that is reshaped, or that softmax takes, or the value itself."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _RESHAPES:
        function = walk.names.dotted(value.func).startswith("torch.") and value.args
        value = value.args[0] if function else value.func.value
    return value


def _raw(walk: Walk, call: ast.Call, item: ast.expr | None) -> bool:
    """Return whether a call is one of a model, whose output, or an item of it, nothing is said to lift."""
    function = walk.values.definition(call)
    if function is not None and re.search(r"float|double|return [^\n]*(loss|softmax)", ast.unparse(function)):
        return False
    if function is not None and function.name == "forward":
        returned = [one.value for one in own(function) if isinstance(one, ast.Return)]
        if isinstance(item, ast.Constant) and isinstance(at := item.value, int):
            tuples = (one for one in returned if isinstance(one, ast.Tuple) and -len(one.elts) <= at < len(one.elts))
            returned = [one.elts[at] for one in tuples]
        ends = [kind for one in returned if isinstance(one, ast.Call) for kind in walk.values.kinds(one.func)]
        if len(ends) == 1 and re.match(r"torch\.nn\.(Linear|Conv)", ends[0]):
            return True
    last = walk.values.origins(call.func)
    while len(last) == 1 and isinstance(last[0], ast.Call) and walk.names.dotted(last[0].func) == "torch.nn.Sequential":
        last = list[ast.AST](last[0].args[-1:])
    layers = [walk.names.dotted(one.func) for one in last if isinstance(one, ast.Call)]
    if any(re.match(r"torch\.nn\.(Linear|Conv)", layer) for layer in layers):
        return True
    return bool(MODEL.search(_name(call.func)))


def _lossy(walk: Walk, regions: list[LoopEvent], backward: LoopEvent, dtype: str) -> list[LoopEvent]:
    """Return the regions of a dtype that the loss of a backward pass comes from."""
    return [made for made in regions if _is(walk, made, dtype) and _of(walk, made, backward)]


def _is(walk: Walk, event: LoopEvent, dtype: str) -> bool:
    """Return whether a region has a dtype, as far as that is known."""
    made = event.regions[-1]
    dtypes = walk.constants(made.dtype)
    if not made.enabled.constant and dtype != "float16":
        return False
    if dtypes == [None]:
        devices = {{"cuda": "float16", "cpu": "bfloat16"}.get(str(one)) for one in walk.constants(made.device)}
        return made.dtype.constant and devices == {dtype}
    short = {"float16": "half", "float32": "float"}.get(dtype)
    return bool(dtypes) and all(str(one).removeprefix("torch.") in (dtype, short) for one in dtypes)


def _of(walk: Walk, made: LoopEvent, backward: LoopEvent) -> bool:
    """Return whether the loss of a backward pass comes from a region."""
    block = made.what[0] if made.what else None
    call = backward.node
    pending: list[tuple[ast.AST, int]] = [(call.func, 0)] if isinstance(call, ast.Call) else []
    seen: set[ast.AST] = set()
    while pending:
        node, depth = pending.pop()
        if node in seen or depth > 6:
            continue
        seen.add(node)
        around = list(walk.names.parents(node))
        if block in around and depth and not isinstance(block, Function):
            inside = around[: around.index(block)]
            if not any(walk.no_grad(item.context_expr) for one in inside for item in getattr(one, "items", ())):
                return True
            continue
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and block is not None and walk.values.definition(part) is block:
                return True
            if isinstance(part, (ast.Name, ast.Attribute, ast.Call)):
                pending += [(value, depth + 1) for value in walk.values.sources(part)]
    return False


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _alone(walk: Walk, node: ast.AST) -> Iterator[Mistake]:
    """Yield the mistakes that one statement or expression shows."""
    names = walk.names
    yield from rounded(walk, node)
    if isinstance(node, ast.Call):
        yield from _in_call(walk, node)
        made = region(names, walk.values.unpacked(node))
        if made is not None:
            yield from _in_region(names, replace(made, call=node))
        inner = walk.values.region(node.func)
        if inner is not None and len(node.args) == 1 and _generator(names, node.args[0]):
            yield node, "decorated-generator"
    elif isinstance(node, Function):
        for decorator in node.decorator_list:
            if walk.values.region(decorator) is not None and _yields(names, node):
                yield decorator, "decorated-generator"
            if names.dotted(decorator) in DEPRECATED and not guarded(names, node, VERSION):
                yield decorator, "deprecated-amp"
    elif isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Attribute):
        if target.attr == "forward" and _autocast(walk, node.value):
            yield node, "forward-replaced"
    elif isinstance(node, ast.ClassDef):
        yield from _own_function(names, node)
    elif isinstance(node, ast.If):
        yield from _inverted(walk, node)
    elif isinstance(node, ast.IfExp) and _on(node.test) and region(names, node.orelse) is not None:
        yield from [(node, "inverted-condition")] * ("nullcontext" in ast.unparse(node.body))


def _in_call(walk: Walk, call: ast.Call) -> Iterator[Mistake]:
    names = walk.names
    name = names.dotted(call.func)
    asked = name == "torch.is_autocast_enabled" and not call.args and not call.keywords
    if (asked or name == "torch.get_autocast_gpu_dtype") and not guarded(names, call, CUDA):
        yield call, "state-of-cuda"
    if name in DEPRECATED and not guarded(names, call, VERSION):
        yield call, "deprecated-amp"
    if _name(call.func) == "register_hook" and call.args and walk.scalers():
        hooked = [ast.unparse(one) for one in walk.values.origins(call.args[0])]
        if any(re.search(r"\bcla?[mi]p_?\(", text) for text in hooked):
            yield call, "clip-before-unscale"
    for word in walk.values.unpacked(call).keywords:
        if name in CUSTOM_FWD and word.arg == "cast_inputs" and names.dotted(word.value) in LOW:
            yield call, "cast-inputs-constant"
        if name in GRAD_SCALERS and word.arg == "enabled" and _off(word.value):
            yield call, "inverted-condition"
    if isinstance(call.func, ast.Name) and call.func.id == "setattr" and len(call.args) == 3:
        named = call.args[1]
        if isinstance(named, ast.Constant) and named.value == "forward" and _autocast(walk, call.args[2]):
            yield call, "forward-replaced"


def _autocast(walk: Walk, value: ast.expr) -> bool:
    """Return whether a value is a function that autocast decorates."""
    calls = [part for part in ast.walk(value) if isinstance(part, ast.Call)]
    functions = [one for one in walk.values.origins(value) if isinstance(one, ast.FunctionDef)]
    for block in [one for function in functions for one in ast.walk(function) if isinstance(one, ast.With)]:
        called = [part.func for part in ast.walk(block) if isinstance(part, ast.Call)]
        old = any(_name(origin) == "forward" for one in called for origin in (one, *walk.values.origins(one)))
        if old and any(walk.values.region(item.context_expr) is not None for item in block.items):
            return True
    decorators = [decorator for function in functions for decorator in function.decorator_list]
    return any(walk.values.region(one) is not None for one in (*(call.func for call in calls), *decorators))


def guarded(names: Names, node: ast.AST, condition: str) -> bool:
    """Return whether a node runs only where a condition of that text holds, or where a newer torch's way failed."""
    for parent in names.parents(node):
        if isinstance(parent, ast.ExceptHandler):
            return True
        named = getattr(parent, "arg", None) if isinstance(parent, ast.keyword) else getattr(parent, "name", None)
        if condition == CUDA and re.search(r"gpu|cuda", str(named)):
            return True  # `dtype_of_gpu=...`, `def cuda_dtype()`: cuda is meant
        test = parent if isinstance(parent, ast.BoolOp) else getattr(parent, "test", None)
        if isinstance(test, ast.expr) and re.search(condition, ast.unparse(test)):
            return True
    return False


def _in_region(names: Names, made: LintedRegion) -> Iterator[Mistake]:
    dtype = made.dtype.value if made.dtype.constant else None
    if dtype in ("torch.float32", "torch.float") and not made.disabled and made.device.value != "cuda":
        yield made.call, "float32-region"
    if made.enabled.expression is not None and _off(made.enabled.expression):
        yield made.call, "inverted-condition"


def _on(test: ast.expr) -> bool:
    """Return whether an expression asks whether mixed precision is wanted."""
    return bool(_ON.match(_name(test)))


def _off(test: ast.expr) -> bool:
    if re.match(r"(no|without|disable)_?(?=[a-z0-9])", _name(test)):
        return bool(_ON.match(re.sub(r"^(no|without|disable)_?", "", _name(test))))
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and _on(test.operand)


def _inverted(walk: Walk, node: ast.If) -> Iterator[Mistake]:
    """Yield a branch that has the regions, and runs where mixed precision is not wanted."""

    def regions(statements: list[ast.stmt]) -> list[LintedRegion]:
        parts = [part for one in statements for part in ast.walk(one)]
        entered = [item.context_expr for part in parts if isinstance(part, ast.With) for item in part.items]
        entered += [part.value for part in parts if isinstance(part, ast.Return) and part.value is not None]
        found = map(walk.values.region, entered)
        return [made for made in found if made is not None and not made.disabled]

    test = node.test
    orelse = node.orelse
    if not orelse and isinstance(node.body[-1], ast.Return):  # `if use_amp: return nullcontext()`
        orelse = walk.names.beside(node)[1]
        if "nullcontext(" not in "".join(map(ast.unparse, orelse if _off(test) else node.body)):
            return
    wrong = node.body if _off(test) else orelse if _on(test) else []
    right = orelse if _off(test) else node.body
    named = _name(test.operand if isinstance(test, ast.UnaryOp) else test)
    if orelse and right and regions(wrong) and not regions(right):
        dtypes = {one for made in regions(wrong) for one in walk.constants(made.dtype)}
        low = {"fp16": "torch.bfloat16", "half": "torch.bfloat16", "bf16": "torch.float16"}.get(named.lower())
        if low is None or low not in dtypes:
            yield node, "inverted-condition"


def _generator(names: Names, expression: ast.expr) -> bool:
    bound = names.lookup(expression.id, expression) if isinstance(expression, ast.Name) else None
    return bound is not None and any(_yields(names, node) for node in bound[1])


def _yields(names: Names, function: ast.AST) -> bool:
    if not isinstance(function, ast.FunctionDef):
        return isinstance(function, ast.AsyncFunctionDef)
    if any(_name(getattr(one, "func", one)) in ("contextmanager", "fixture") for one in function.decorator_list):
        return False
    yields = (node for node in ast.walk(function) if isinstance(node, (ast.Yield, ast.YieldFrom)))
    return any(names.scope(node) is function for node in yields)


def _own_function(names: Names, owner: ast.ClassDef) -> Iterator[Mistake]:
    if _FUNCTIONS.isdisjoint(map(names.dotted, owner.bases)):
        return
    methods = {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}
    forward, backward = methods.get("forward"), methods.get("backward")
    if forward is None or any(ast.unparse(one) != "staticmethod" for one in forward.decorator_list):
        return
    if backward is None or not any(is_product(names, node) for node in ast.walk(backward)):
        return  # one that raises, or multiplies elements, which promotes
    # One that casts in backward has thought of dtypes, and complex tensors are not cast.
    if re.search(r"\.(to|type|type_as|float|half|bfloat16)\(|dtype", ast.unparse(backward)):
        return
    if re.search(r"autocast|custom_fwd|fft|complex|sparse", ast.unparse(owner)):
        return
    if f"{owner.name}.forward" in ast.unparse(names.tree):  # it may be decorated later
        return
    if any(is_product(names, node) for node in ast.walk(forward)):
        yield forward, "function-without-custom-fwd"


# ---- what a region or an FSDP policy rounds, or leaves out, as one expression shows it

_PRODUCTS = re.compile(
    r"^(matmul|mm|bmm|addmm|baddbmm|linear|einsum|conv[123]d(_input|_weight)?|conv_transpose[123]d)$"
)
_LIFTS = ("float", "double")
_POLICIES = ("MixedPrecision", "MixedPrecisionPolicy")
_SOFTMAX = re.compile(r"\b(log_)?softmax$")


def rounded(walk: Walk, node: ast.AST) -> Iterator[Mistake]:
    """Yield what an expression shows."""
    if is_product(walk.names, node) or _layer(walk, node):
        yield from _of_positions(walk, node)
    if isinstance(node, ast.Call):
        yield from _lifted(walk, node)
        yield from _fsdp(walk, node)


def is_product(names: Names, node: ast.AST) -> bool:
    """Return whether an expression is a product that autocast casts."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    if not isinstance(node, ast.Call) or not _PRODUCTS.match(last_name(node.func)):
        return False
    dotted = names.dotted(node.func)
    return dotted.startswith("torch.") or (not dotted and last_name(node.func) in ("matmul", "mm", "bmm"))


def in_region(walk: Walk, node: ast.AST) -> bool | None:
    """Return whether a node is in an enabled region of its function; None where the function has none around it."""
    for parent in walk.names.parents(node):
        function = isinstance(parent, Function)
        around = parent.decorator_list if isinstance(parent, Function) else []
        if isinstance(parent, With):
            around = [item.context_expr for item in reversed(parent.items)]
        for one in around:
            made = walk.values.region(one)
            if made is not None:
                return not made.disabled
            if re.search(r"autocast|amp", ast.unparse(one)):
                return False  # a context of another file: who wrote it has thought of precision
        if function or isinstance(parent, ast.Lambda):
            return None
    return None


def _lifted(walk: Walk, call: ast.Call) -> Iterator[Mistake]:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in (*_LIFTS, "to"):
        return
    lifted: ast.AST = call.func.value
    statement = next((one for one in walk.names.parents(call) if isinstance(one, ast.stmt)), call)
    before = walk.names.beside(statement)[0][-1:]
    if before and isinstance(before[0], ast.Assign) and ast.unparse(before[0].targets[0]) == ast.unparse(lifted):
        lifted = before[0].value
    if not is_product(walk.names, lifted):
        return
    to = [walk.names.dotted(value) for value in (*call.args, *(word.value for word in call.keywords))]
    lifts = call.func.attr in _LIFTS or (call.func.attr == "to" and {"torch.float32", "torch.float"} & set(to))
    if lifts and in_region(walk, call):
        yield call, "lift-after-product"


def _layer(walk: Walk, node: ast.AST) -> bool:
    """Return whether a node calls a layer of torch.nn that multiplies."""
    kinds = walk.values.kinds(node.func) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else []
    return any(re.match(r"torch\.nn\.(Linear|Bilinear|Conv)", kind) for kind in kinds)


def _of_positions(walk: Walk, product: ast.AST) -> Iterator[Mistake]:
    parts = [product.left, product.right] if isinstance(product, ast.BinOp) else getattr(product, "args", [])
    function = next((one for one in walk.names.parents(product) if isinstance(one, ast.FunctionDef)), None)
    inside = in_region(walk, product)
    if inside is False or (inside is None and (function is None or function.name not in ("forward", "__call__"))):
        return
    text = parts[0].value if parts and isinstance(parts[0], ast.Constant) else ""
    left, _, right = str(text).partition("->")
    if text and set(left) - set(right) <= set(", "):
        return  # an einsum that sums over nothing multiplies, and autocast leaves that alone
    if any(_counts(walk, part) for part in parts):
        yield product, "positions-in-product"


def _counts(walk: Walk, node: ast.AST, depth: int = 0) -> bool:
    """Return whether a value is `arange(...)`, reshaped or cast."""
    if depth > 6:
        return False
    if isinstance(node, ast.Call):
        if last_name(node.func) in ("arange", "range") and walk.names.dotted(node.func).startswith("torch."):
            bound = node.args[-1] if node.args else None
            return not (isinstance(bound, ast.Constant) and isinstance(bound.value, int) and bound.value <= 256)
        reshapes = ("float", "to", "unsqueeze", "view", "reshape", "type_as", "expand", "repeat", "double", "flatten")
        method = node.func if isinstance(node.func, ast.Attribute) and node.func.attr in reshapes else None
        return method is not None and _counts(walk, method.value, depth + 1)
    if isinstance(node, ast.Subscript):
        return _counts(walk, node.value, depth + 1)
    values = walk.values.sources(node) if isinstance(node, ast.Name) else []
    return bool(values) and all(_counts(walk, value, depth + 1) for value in values)


def _fsdp(walk: Walk, call: ast.Call) -> Iterator[Mistake]:
    name = walk.names.dotted(call.func)
    if not name.startswith("torch.distributed.") or name.rpartition(".")[2] not in _POLICIES:
        return
    low = {word.arg for word in call.keywords if set(walk.values.constants(word.value)) & set(LOW)}
    if "buffer_dtype" in low:
        yield call, "fsdp-rounds-tables"
    text = ast.unparse(walk.names.tree)
    if "param_dtype" not in low or "autocast" in text or "output_dtype" in {word.arg for word in call.keywords}:
        return
    around = [one for one in walk.names.parents(call) if isinstance(one, ast.ClassDef)]
    calls = (node for node in ast.walk(around[-1] if around else walk.names.tree) if isinstance(node, ast.Call))
    sums = any(walk.lossy(one) or _SOFTMAX.search(ast.unparse(one.func)) for one in calls)
    if ".backward(" in text and sums and not re.search(r"\.float\(\)|torch\.float32", text):
        yield call, "fsdp-policy-is-no-region"
