"""Write a case as a program of plain torch: the checks' own source, printed, around the call of the case.

What a check compares with is in functions that need torch alone. The check calls them, and its program prints them
(`Sources`), so that both compare the same things in the same words.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from types import ModuleType
from typing import Any
from zlib import crc32

from ampcheck.checks.call import CallPlan
from ampcheck.compilers import source
from ampcheck.devices.base import Device
from ampcheck.samples import tensors as fills
from ampcheck.samples.describe import TensorArg, leaves
from ampcheck.spec.dtypes import is_floating
from ampcheck.spec.torch_dtypes import DTYPES

OURS = "ampcheck"
"""The package whose source is printed, because a program must not import it."""


def pytest_line(
    node: str, device: Device, modules: Sequence[str] = (), *, installed: bool = False, further: Sequence[str] = ()
) -> str:
    """Return the command that runs one case and nothing else, quoted for a shell.

    `modules`: what `--device-module` named. `installed`: where the repository's conftest.py, which loads the plugin,
    may not be there. `further`: options without which the case would not exist.
    """
    program = ["pytest", "-p", "ampcheck.runner.plugin"] if installed else ["pytest"]
    options = [f"--device-module={module}" for module in modules]
    return shlex.join([*program, node, f"--device={device.name}", *options, *further])


def preamble(device: Device, modules: Sequence[str] = (), *, simulate_cuda: bool = True) -> list[str]:
    """Return the lines that make a device usable in plain torch; `fake` is the mode of a virtual device's tensors.

    `modules`: what `--device-module` named. `simulate_cuda`: False leaves out the patch of the check for CUDA.
    """
    if device.has_values or not device.name.startswith("virtual:"):
        return ["import torch", *device.setup, *_backend(device, modules)]
    lines = ["import torch", "from torch._subclasses.fake_tensor import FakeTensorMode"]
    if device.type == "cuda" and simulate_cuda:  # torch.autocast("cuda") switches itself off where CUDA is absent
        lines += [
            "torch.cuda.amp.common.amp_definitely_not_available = lambda: False",
            "torch.cuda.is_bf16_supported = lambda *args: True",
        ]
    return [*lines, "fake = FakeTensorMode(allow_non_fake_inputs=True)", "fake.__enter__()"]


def _backend(device: Device, modules: Sequence[str]) -> list[str]:
    """Return the import of a third party's backend: the module that declares the device, or else that of its class."""
    declared = (name for name in modules if device in getattr(sys.modules.get(name), "DEVICES", ()))
    name = next(declared, type(device).__module__)
    if name.partition(".")[0] == OURS:
        return []
    lines = [f"import {name}"]
    if type(device).tensor is not Device.tensor:
        lines.append(f"# {type(device).__name__} makes its tensors by itself; x.to({device.type!r}) must work here.")
    return lines


def region(device: Device, amp: str) -> str:
    """Return the expression of a region of a device, in a dtype of the specification."""
    return f"{device.region}({device.type!r}, dtype={DTYPES[amp]})"


def dtypes_list(names: Iterable[str]) -> str:
    """Return dtypes of the specification as a list in a program."""
    return f"[{', '.join(str(DTYPES[name]) for name in names)}]"


def written(device: Device, modules: Sequence[str], needed: Iterable[object], lines: Sequence[str]) -> str:
    """Return a program.

    Args:
        device: the device that it runs on.
        modules: what `--device-module` named.
        needed: the functions, classes and modules that its lines name; those of ampcheck are printed.
        lines: its own blocks, which follow.
    """
    sources = Sources()
    for value in needed:
        sources.add(value)
    head = [*sources.imports(), *preamble(device, modules)]
    return "\n\n".join(["\n".join(head), *sources.blocks, *lines])


class Sources:
    """The source of functions, classes and constants, each behind what it needs, with the imports for all of them.

    `blocks`: the source, without docstrings and annotations.
    """

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self._done: dict[str, object] = {}
        self._imports: dict[str, set[str]] = {}

    def add(self, value: object, name: str = "") -> None:
        """Add a function, a class or a module, and what its source names."""
        name = name or getattr(value, "__name__", "")
        if self._seen(name, value):
            return
        if isinstance(value, ModuleType):
            self._import(value.__name__)
        elif getattr(value, "__module__", "").partition(".")[0] == OURS:
            self._print(inspect.getsource(_unwrapped(value)), sys.modules[value.__module__])
        else:
            self._import(str(getattr(value, "__module__", "")), name)

    def imports(self) -> list[str]:
        """Return the lines that import what is not ampcheck's, without torch itself."""
        plain = sorted(f"import {module}" for module, names in self._imports.items() if "" in names)
        some = [(module, names - {""}) for module, names in sorted(self._imports.items()) if names - {""}]
        lines = [*plain, *(f"from {module} import {', '.join(sorted(names))}" for module, names in some)]
        return [line for line in lines if line != "import torch"]

    def _seen(self, name: str, value: object) -> bool:
        """Return whether a name is there already. Raises ValueError where it is there for something else."""
        if name in self._done and self._done[name] is not value:
            raise ValueError(f"a program cannot have two things named {name}")
        return name in self._done or self._done.setdefault(name, value) is not value

    def _import(self, module: str, name: str = "") -> None:
        self._imports.setdefault(module, set()).add(name)

    def _print(self, source: str, module: ModuleType) -> None:
        """Add a piece of a module's source behind what it names of the module."""
        text = _plain(source)
        for name in sorted(_globals(text)):
            if name in vars(module):
                self._named(name, module)
        self.blocks.append(text)

    def _named(self, name: str, module: ModuleType) -> None:
        """Add what a name means in a module."""
        value = vars(module)[name]
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] == OURS:
            raise ValueError(f"a program has no module {value.__name__}; what it prints must import names from there")
        statement = _statements(module).get(name)
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            source = sys.modules.get(statement.module or "") if isinstance(statement, ast.ImportFrom) else None
            if source is None or source.__name__.partition(".")[0] != OURS:
                self._imported(name, value, statement)
            elif path := _private_names(source).get(name):
                if not self._seen(name, value):
                    origin, _, last = path.rpartition(".")
                    self._import(origin, last if last == name else f"{last} as {name}")
            else:
                self._named(name, source)
        elif inspect.isfunction(_unwrapped(value)) or inspect.isclass(value):
            self.add(value, name)
        elif statement is not None and not self._seen(name, value):
            self._print(ast.get_source_segment(inspect.getsource(module), statement) or "", module)

    def _imported(self, name: str, value: object, statement: ast.Import | ast.ImportFrom) -> None:
        if self._seen(name, value):
            return
        alias = next(a for a in statement.names if (a.asname or a.name.partition(".")[0]) == name)
        said = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
        if isinstance(statement, ast.Import):
            self._import(said)
        else:
            self._import(statement.module or "", said)


def _unwrapped(value: Any) -> Any:
    """Return the function behind a decorated one; any other value as it is."""
    return inspect.unwrap(value)


@cache
def _statements(module: ModuleType) -> dict[str, ast.stmt]:
    """Return the statements at the top of a module that define or import its names."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name.partition(".")[0]: node for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id: node for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
    return found


@cache
def _private_names(module: ModuleType) -> dict[str, str]:
    """Return the paths in torch of what a `torch_private` module takes from there, by the names it gives them."""
    if not module.__name__.endswith(".torch_private"):
        return {}
    found = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        value = getattr(node, "value", None)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(value, ast.Call) and value.args:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and isinstance(value.args[0], ast.Constant):
                found[target.id] = str(value.args[0].value)
    return found


def _globals(text: str) -> Iterator[str]:
    """Yield the names that a piece of source takes from its module."""
    tables = [symtable.symtable(text, "piece", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        top = table.get_type() == "module"
        yield from (s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global()))


def _plain(source: str) -> str:
    """Return a piece of source without docstrings, annotations and comments for linters; else as it is written."""
    source = textwrap.dedent(source).rstrip()
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    # Changed from the end, so that the places before stay right.
    for first, last, new in sorted(_edits(ast.parse(source), starts, data), reverse=True):
        data = data[:first] + new + data[last:]
    return re.sub(r"  # (?:type: ignore|noqa).*", "", data.decode())


def _edits(tree: ast.AST, starts: Sequence[int], data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the bytes to replace: the first one, the one behind the last, and by what."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation:
            first = starts[node.lineno - 1] + node.col_offset + len(node.arg.encode())
            yield first, _end(node.annotation, starts), b""
        if isinstance(node, ast.FunctionDef) and node.returns:
            arrow = data.rindex(b"->", 0, starts[node.returns.lineno - 1] + node.returns.col_offset)
            yield len(data[:arrow].rstrip()), _end(node.returns, starts), b""
        if isinstance(node, ast.ClassDef):  # the fields of a dataclass or of a named tuple need one
            for part in node.body:
                if isinstance(part, ast.AnnAssign):
                    note = part.annotation
                    yield starts[note.lineno - 1] + note.col_offset, _end(note, starts), b"object"
        elif hasattr(node, "body") and isinstance(node.body, list):
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and part.value:
                    yield _end(part.target, starts), _end(part.annotation, starts), b""
        body = getattr(node, "body", [])
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and len(body) > 1:
            for part in body:
                if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
                    after = part.end_lineno or 0
                    while after < len(starts) - 1 and not data[starts[after] : starts[after + 1]].strip():
                        after += 1  # the blank line behind a docstring goes with it
                    yield starts[part.lineno - 1], starts[after], b""


def _end(node: ast.expr, starts: Sequence[int]) -> int:
    return starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)


def report(what: str, differences: Sequence[str]) -> None:
    """Print each difference behind FAIL; `ok` and what was compared where there is none."""
    print("\n".join(f"FAIL {text}" for text in differences) or f"ok   {what}")


def expression(arg: TensorArg, dtype: str, position: int, device: Device) -> tuple[str, list[object]]:
    """Return a tensor argument as `ampcheck.samples.tensors.host_tensor` makes it, and the functions that it names."""
    where = "cpu" if arg.device == "cpu" else device.type
    if not device.has_values:
        return f"torch.empty({arg.shape}, dtype={DTYPES[dtype]}, device={where!r})", []
    needed: list[object] = []
    wanted, own = DTYPES[dtype], DTYPES[arg.dtype] if arg.dtype else None
    seed = crc32(repr((arg.shape, arg.fill, arg.seed, position)).encode())
    generator = f"torch.Generator().manual_seed({seed})"
    count = 1
    for size in arg.shape:
        count *= size
    if arg.fill == "integers":
        made = f"torch.randint({arg.high}, {arg.shape}, generator={generator})"
    elif arg.fill == "arange":
        made = f"torch.arange({count}).reshape({arg.shape})"
    elif arg.fill == "pivots":
        made = f"torch.arange(1, {arg.shape[-1]} + 1).expand({arg.shape})"
    elif own is not None and own.is_complex:
        part = f"torch.randn({arg.shape}, dtype=torch.float64, generator=g)"
        made = f"(lambda g: torch.complex({part}, {part}))({generator})"
    else:
        fill = fills.FILLS[arg.fill]
        made = _inlined(fill, (repr(arg.shape), generator))
        if not made:
            made, needed = f"{fill.__name__}({arg.shape}, {generator})", [fill]
        if not wanted.is_floating_point and own is None:
            made = f"(3 * ({made})).round()"
    if arg.strided and len(arg.shape) > 1:  # as ampcheck.samples.tensors makes one that is not contiguous
        made = f"({made}).mT.clone(memory_format=torch.contiguous_format).mT"
    elif arg.strided:
        made = f"torch.stack([{made}] * 2, -1)[..., 0]"
    if not isinstance(ast.parse(made, mode="eval").body, (ast.Call, ast.Attribute, ast.Subscript)):
        made = f"({made})"
    on = "" if where == "cpu" else f"{where!r}, "
    return f"{made}.to({on}{wanted})", needed


def _inlined(function: Callable[..., object], arguments: Sequence[str]) -> str:
    """Return the call of a function as the expression that it returns; "" for one that is more than an expression."""
    node = ast.parse(inspect.getsource(function)).body[0]
    assert isinstance(node, ast.FunctionDef)
    result = node.body[-1]
    if (
        len(node.body) > 1 + (ast.get_docstring(node) is not None)
        or not isinstance(result, ast.Return)
        or result.value is None
    ):
        return ""
    given = {arg.arg: text for arg, text in zip(node.args.args, arguments, strict=True)}
    possible = True

    class Inline(ast.NodeTransformer):
        def visit_Call(self, call: ast.Call) -> ast.AST:
            nonlocal possible
            self.generic_visit(call)
            if not isinstance(call.func, ast.Name):
                return call
            inner = getattr(fills, call.func.id, None)
            text = _inlined(inner, [ast.unparse(part) for part in call.args]) if inner else ""
            possible = possible and bool(text)
            return ast.parse(text, mode="eval").body if text else call

        def visit_Name(self, name: ast.Name) -> ast.AST:
            return ast.parse(given[name.id], mode="eval").body if name.id in given else name

    text = ast.unparse(Inline().visit(result.value))
    return text if possible else ""


_SIGNS = {"matmul": "@", "pow": "**", "truediv": "/", "add": "+", "sub": "-", "mul": "*", "eq": "=="}


def made_tensors(
    todo: CallPlan, device: Device, layout: Callable[..., object] | None = None
) -> tuple[list[object], list[str]]:
    """Return the functions that the tensors of a call are made by, and how each is made.

    `layout`: lays out each floating tensor.
    """
    needed: list[object] = [layout] if layout else []
    made = []
    for place, (leaf, given) in enumerate(zip(leaves(todo.sample), todo.given, strict=True)):
        text, functions = expression(leaf, given.dtype, place, device)
        made.append(f"{layout.__name__}({text})" if layout and DTYPES[given.dtype].is_floating_point else text)
        needed += functions
    return needed, made


def call_blocks(todo: CallPlan, made: Sequence[str]) -> list[str]:
    """Write the functions `inputs`, which makes the tensors of a call, and `call`, which makes the call on them."""
    listed = (
        "\n".join(["[", *(f"        {text}," for text in made), "    ]"]) if len(made) > 1 else f"[{''.join(made)}]"
    )
    seeded = "" if todo.op.values == "exact" else "    torch.manual_seed(0)\n"
    inputs = f"def inputs():\n{seeded}    return {listed}"
    return [inputs, f"def call({', '.join(source.names(todo.sample))}):\n    return {written_call(todo)}"]


def cast_blocks(todo: CallPlan, rule: str) -> list[str]:
    """Write `cast`, which casts the tensors of a call as autocast should.

    Where autocast fills in a `dtype=`, also `reference`, the call that it should make on these.
    """
    cast = f"def cast(given):  # rule {rule}\n    return {cast_expression(todo, 'given')}"
    return [cast, *reference_blocks(todo)]


def cast_expression(todo: CallPlan, given: str) -> str:
    """Return the list of the tensors of a call, cast as autocast should."""
    filled = todo.expected.dtype_kwarg if todo.sample.call != "aten" else None
    wanted = [filled if filled and is_floating(x) else x for x in todo.expected.leaves]
    return f"[x.to(dtype) for x, dtype in zip({given}, {dtypes_list(wanted)})]"


def reference_blocks(todo: CallPlan) -> list[str]:
    """Write `reference`, the call with the `dtype=` that autocast fills in, where it does; else nothing."""
    filled = todo.expected.dtype_kwarg
    if not filled or todo.sample.call != "aten":
        return []
    parameters = ", ".join([*source.names(todo.sample), f"dtype={DTYPES[filled]}"])
    return [f"def reference({parameters}):\n    return {written_call(todo, filled=True)}"]


def overload_path(name: str) -> str:
    """Return the path of an overload behind `torch.ops.aten`."""
    packet, _, variant = name.partition(".")
    return f"{packet}.{variant or 'default'}"


def written_call(todo: CallPlan, *, filled: bool = False) -> str:
    """Return the call as people write it; where it is `filled`, of the overload that takes the `dtype` filled in."""
    remaining = iter(source.names(todo.sample))
    args = [source.written(value, remaining) for value in todo.sample.args]
    kwargs = [f"{name}={source.written(value, remaining)}" for name, value in todo.sample.kwargs.items()]
    path = todo.sample.call
    own = bool(args) and isinstance(todo.sample.args[0], TensorArg)
    if path == "aten":
        path = f"torch.ops.aten.{overload_path(todo.expected.overload if filled else todo.op.overload)}"
        kwargs += ["dtype=dtype"] * filled
    elif path.startswith("operator.") and len(args) == 2:
        return f"{args[0]} {_SIGNS[path.removeprefix('operator.')]} {args[1]}"
    elif path.startswith("torch.Tensor.") and own:
        path = f"{args.pop(0)}.{path.removeprefix('torch.Tensor.')}"
    return f"{path}({', '.join([*args, *kwargs])})"
