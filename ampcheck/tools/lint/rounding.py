"""What a region or an FSDP policy rounds, or leaves out, as one expression shows it."""

import ast
import re
from collections.abc import Iterator

from ampcheck.tools.lint.events import Walk
from ampcheck.tools.lint.names import LOW, Function, Names, With
from ampcheck.tools.lint.values import last_name

_PRODUCTS = re.compile(
    r"^(matmul|mm|bmm|addmm|baddbmm|linear|einsum|conv[123]d(_input|_weight)?|conv_transpose[123]d)$"
)
_LIFTS = ("float", "double")
_POLICIES = ("MixedPrecision", "MixedPrecisionPolicy")
_SOFTMAX = re.compile(r"\b(log_)?softmax$")

Seen = Iterator[tuple[ast.AST, str]]


def rounded(walk: Walk, node: ast.AST) -> Seen:
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


def _lifted(walk: Walk, call: ast.Call) -> Seen:
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


def _of_positions(walk: Walk, product: ast.AST) -> Seen:
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


def _fsdp(walk: Walk, call: ast.Call) -> Seen:
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
