"""What a kind of case is, and how a case is written as plain torch: the checks' own source, printed, around the call.

What a check compares with is in functions that need torch alone. The check calls them, and its program prints them
(`PrintedSource`) with all that they use of their modules, so that both compare the same things in the same words.
"""

import __future__

import ast
import dis
import inspect
import re
import shlex
import sys
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from graphlib import TopologicalSorter
from types import CodeType
from typing import Any
from zlib import crc32

from ampcheck.checks.cases import CallPlan
from ampcheck.compilers import source
from ampcheck.devices.base import Device
from ampcheck.errors import Difference
from ampcheck.samples import tensors as fills
from ampcheck.samples.describe import TensorArg, leaves
from ampcheck.spec.case import Case
from ampcheck.spec.casting import is_floating
from ampcheck.spec.torch_dtypes import DTYPES


class Check(ABC):
    """One kind of case. `ampcheck.checks.kinds.check_of` finds the kind of a case."""

    @abstractmethod
    def takes(self, case: Case) -> bool:
        """Return whether a case is of this kind."""

    @abstractmethod
    def run(self, case: Case, device: Device) -> list[str]:
        """Run a case on a device and return every difference from the specification.

        Raises:
            Unsupported: autocast did its part, and the dispatcher has no kernel for the op, or the device declares that
                it has none for these dtypes.
            Broken: the op raises or is wrong on this device without autocast, too.
        """

    @abstractmethod
    def program(
        self, case: Case, device: Device, message: str = "", modules: Sequence[str] = (), *, ran: bool = True
    ) -> str:
        """Write a case as a program that needs torch and the device alone.

        It makes the comparison that found a difference once more, and prints `FAIL` with each difference in the words
        of the check, or `ok` with what it compared.

        Args:
            message: the differences that were found, a line each. "": everything is compared.
            modules: what `--device-module` named.
            ran: False for a case that ended its process: nothing of it is run here, nor compared with a reference.
        """

    @abstractmethod
    def describe(self, case: Case) -> str:
        """Return what is checked of a case, in a sentence."""


class OpCheck(Check):
    """A kind of case about an op, whose program begins with a comment that describes the case."""

    def program(
        self, case: Case, device: Device, message: str = "", modules: Sequence[str] = (), *, ran: bool = True
    ) -> str:
        comment = textwrap.fill(self.describe(case), 118, initial_indent="# ", subsequent_indent="# ")
        return f"{comment}\n{self.write(case, device, message, modules, ran=ran)}"

    @abstractmethod
    def write(self, case: Case, device: Device, message: str, modules: Sequence[str], *, ran: bool) -> str:
        """Write the program without its comment; see `program`."""


def carrying(error: BaseException | None, differences: Iterable[str]) -> list[str]:
    """Return differences that carry the exception that they are about, for the traceback and the cause of the case."""
    return [Difference(text, error) for text in differences]


PRINTED = frozenset(
    f"ampcheck.{name}"
    for name in (
        *("checks.amp", "checks.backward", "checks.comparisons", "checks.compiled", "checks.drift", "checks.layouts"),
        *("checks.op_database", "checks.program", "checks.relations", "checks.sweep", "checks.training"),
        *("compilers.kinds", "compilers.source", "devices.virtual.graphs", "errors", "observe.closeness"),
        *("observe.isolation", "observe.recorder", "samples.surface", "samples.tensors", "spec.casting"),
        *("spec.policies", "spec.torch_dtypes"),
    )
)
"""The modules of ampcheck of which a program may have parts: those parts need torch and the standard library alone."""
_LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR")


class Unreproducible(Exception):
    """A function that uses what plain torch does not have; the text says what."""


class PrintedSource:
    """The source of functions, classes and constants, with the imports that it needs.

    Args:
        module: the module whose source a program has, beside those of `PRINTED`.
        picked: classes of which a program has only the attributes that it uses.
        kept: dictionaries of which it has only one entry, with its key.
    """

    def __init__(self, module: str, picked: Collection[str] = (), kept: Mapping[str, object] | None = None) -> None:
        self.imports: set[str] = set()
        self.attributes: set[str] = {"__init__"}
        """The attributes of anything that are used."""
        self.strings: set[str] = set()
        """The strings that are constants of the source."""
        self._module = module
        self._picked = picked
        self._kept = kept or {}
        self._blocks: dict[tuple[str, int], str] = {}
        self._uses: dict[str, set[str]] = {}
        self._names: dict[str, str] = {}
        self._tables: dict[str, ast.Dict] = {}
        self._by_name = False
        """Whether attributes are looked up by name: then any string may be one."""

    def add(self, name: str, module: str = "") -> None:
        """Add what a name means in a module, with what that uses.

        Raises Unreproducible where it uses more than torch and the standard library.
        """
        module = module or self._module
        if self._names.setdefault(name, module) != module:
            raise Unreproducible(f"two things named {name}")
        node = _statements(module)[name]
        if (module, node.lineno) in self._blocks:
            return
        value = vars(sys.modules[module]).get(name)
        if hasattr(value, "promised"):  # see ampcheck.checks.scenario.promised
            self._block(module, node.lineno, f"def {name}(amp, *given):\n    return amp.promises[({name!r}, *given)]")
        elif name in self._picked and isinstance(node, ast.ClassDef):
            head = _lines(module, node.lineno, node.body[0].lineno - 1)
            self._block(module, node.lineno, f"{head}\n    pass")
            self._blocks[module, node.lineno] = head
        else:
            self._block(module, node.lineno, self._entry(name, node, module) or _text(module, node, value))

    @property
    def names(self) -> Collection[str]:
        """The names that the source defines."""
        return self._names

    def text(self) -> list[str]:
        """Return the blocks of source, each module's in order and behind those of the modules that it uses."""
        while any([self._pick(name) for name in self._picked if name in self._names]):
            pass
        ordered = TopologicalSorter({module: self._uses.get(module, ()) for module, _ in self._blocks}).static_order()
        places = [place for module in ordered for place in sorted(self._blocks) if place[0] == module]
        return [self._blocks[place] for place in places]

    def single_entries(self, bound: Mapping[str, object]) -> dict[str, object]:
        """Return each dictionary of which only the entry that one parameter names is used, with the key.

        `bound`: the values of parameters, which have the same names wherever they are passed on.
        """
        found = {}
        for name, table in self._tables.items():
            uses = [use for text in self._blocks.values() for use in re.findall(rf"(?<!`)\b{name}\b(\[\w+\])?", text)]
            keys = {bound.get(use[1:-1]) for use in uses if use}
            # One mention is where the dictionary is defined.
            if len(keys) == 1 and uses.count("") == 1 and keys <= {_constant(key) for key in table.keys} - {None}:
                found[name] = keys.pop()
        return found

    def _pick(self, name: str) -> bool:
        """Add the attributes that are used of a class that is picked apart; return whether there were more."""
        module, more = self._names[name], False
        used = self.attributes | (self.strings if self._by_name else set())
        node = _statements(module)[name]
        assert isinstance(node, ast.ClassDef)
        for part in node.body:
            if (module, part.lineno) not in self._blocks and used.intersection(_defined(part)):
                self._block(module, part.lineno, _text(module, part))
                more = True
        return more

    def _block(self, module: str, line: int, text: str) -> None:
        self._blocks[module, line] = text
        names, attributes, strings = _used(text)
        self.attributes |= attributes
        self.strings |= strings
        self._by_name = self._by_name or "getattr" in names
        for name in sorted(names & set(_statements(module))):
            node = _statements(module)[name]
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(module, name, node)
            else:
                self.add(name, module)

    def _import(self, module: str, name: str, node: ast.Import | ast.ImportFrom) -> None:
        alias = next(alias for alias in node.names if name in (alias.asname, alias.name.partition(".")[0]))
        said = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
        origin = alias.name if isinstance(node, ast.Import) else node.module or ""
        if origin.partition(".")[0] != "ampcheck":
            self.imports.add(f"import {said}" if isinstance(node, ast.Import) else f"from {origin} import {said}")
        elif origin.endswith(".torch_private"):
            self._private(origin, name)
        elif origin in PRINTED and not alias.asname:
            self._uses.setdefault(module, set()).add(origin)
            self.add(alias.name, origin)
        else:
            raise Unreproducible(f"{alias.name} of {origin}")

    def _private(self, module: str, name: str) -> None:
        """Import what a `torch_private` module takes from torch; what it looks up at a call, a function looks up."""
        found = _taken(module, name)
        if found is None:
            node = _statements(module).get(name)
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").endswith(".torch_private"):
                raise Unreproducible(f"{name} of {module}")
            return self._private(node.module or "", name)
        how, path = found
        origin, _, last = path.rpartition(".")
        if how in ("take", "call"):
            self.imports.add(
                f"from {origin} import {last}" if last == name else f"from {origin} import {last} as {name}"
            )
        else:
            self.imports.add("from importlib import import_module")
            self._blocks[module, 0] = f"def {name}():\n    return import_module({path!r})"

    def _entry(self, name: str, node: ast.stmt, module: str) -> str:
        """Return a dictionary with its one entry that is kept; "" for anything else."""
        table = getattr(node, "value", None)
        if not isinstance(table, ast.Dict):
            return ""
        self._tables[name] = table
        for key, value in zip(table.keys, table.values, strict=True):
            if name in self._kept and _constant(key) == self._kept[name]:
                entry = ast.get_source_segment(inspect.getsource(sys.modules[module]), value)
                return f"{name} = {{{self._kept[name]!r}: {entry}}}"
        return ""


def _text(module: str, node: ast.stmt, value: object = None) -> str:
    """Return a statement as it is written, without decorators that pytest knows and without marks for linters."""
    decorators = [] if hasattr(value, "pytestmark") else getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    text = re.sub(r"  # (?:type: ignore|noqa).*", "", _lines(module, first, node.end_lineno or 0))
    return _plain(text) if module.startswith("ampcheck.") else text


@cache
def _plain(text: str) -> str:
    """Return a statement without docstrings and annotations; else as it is written."""
    source = textwrap.dedent(text)
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    # Changed from the end, so that the places before stay right.
    for first, last, new in sorted(_edits(ast.parse(source), starts, data), reverse=True):
        data = data[:first] + new + data[last:]
    margin = text[: len(text) - len(text.lstrip(" "))]
    return textwrap.indent(data.decode(), margin)


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


def _lines(module: str, first: int, last: int) -> str:
    return "\n".join(_all_lines(module)[first - 1 : last])


@cache
def _all_lines(module: str) -> list[str]:
    return inspect.getsource(sys.modules[module]).splitlines()


@cache
def _taken(module: str, name: str) -> tuple[str, str] | None:
    """Return how a `torch_private` module takes a name, and its path in torch; None where another one takes it."""
    found = re.search(rf'\b{name}\b.* = NAMES\.(\w+)\(\s*"([\w.]+)"', inspect.getsource(sys.modules[module]))
    return (found[1], found[2]) if found else None


@cache
def _statements(module: str) -> dict[str, ast.stmt]:
    """Return the statements at the top of a module that define its names."""
    return {name: node for node in ast.parse(inspect.getsource(sys.modules[module])).body for name in _defined(node)}


def _defined(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


@cache
def _used(text: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return the global names, the attributes and the constant strings that a piece of source uses."""
    names, attributes, strings = set[str](), set[str](), set[str]()
    code = compile(textwrap.dedent(text), "", "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    for each in codes(code):
        for step in dis.get_instructions(each):
            names |= {step.argval} if step.opname in _LOADS else set()
            attributes |= {step.argval} if step.opname in _ATTRIBUTES else set()
        strings |= {word for constant in each.co_consts for word in _strings(constant)}
    return frozenset(names), frozenset(attributes), frozenset(strings)


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a piece of source and of all functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def _strings(constant: object) -> Iterator[str]:
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, tuple):
        for each in constant:
            yield from _strings(each)


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


Needed = Callable[..., Any]
"""A function or a class that a program names."""

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
    lines = ["import torch", *device.setup, *_backend(device, modules)]
    if device.has_values or not device.name.startswith("virtual:"):
        return lines
    lines.append("from torch._subclasses.fake_tensor import FakeTensorMode")
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
    if device.has_values and type(device).tensor is not Device.tensor:
        lines.append(f"# {type(device).__name__} makes its tensors by itself; x.to({device.type!r}) must work here.")
    return lines


def region(device: Device, amp: str, *, enabled: bool = True) -> str:
    """Return the expression of a region of a device, in a dtype of the specification."""
    off = ", enabled=False"
    if not enabled and device.region != "torch.autocast":  # torchax takes no `enabled`
        return f"{device.region}({device.type!r}, dtype=None)"
    return f"{device.region}({device.type!r}, dtype={DTYPES[amp]}{'' if enabled else off})"


def dtypes_list(names: Iterable[str]) -> str:
    """Return dtypes of the specification as a list in a program."""
    return f"[{', '.join(str(DTYPES[name]) for name in names)}]"


def written(device: Device, modules: Sequence[str], needed: Iterable[Needed], lines: Sequence[str]) -> str:
    """Return a program.

    Args:
        device: the device that it runs on.
        modules: what `--device-module` named.
        needed: the functions, classes and modules that its lines name; those of ampcheck are printed.
        lines: its own blocks, which follow.
    """
    sources = PrintedSource("")
    for value in needed:
        if value.__module__.partition(".")[0] == OURS:
            sources.add(value.__name__, value.__module__)
        else:
            sources.imports.add(f"from {value.__module__} import {value.__name__}")
    head = [*merged(sources.imports), *preamble(device, modules)]
    return "\n\n".join(["\n".join(head), *sources.text(), *lines])


def merged(imports: Iterable[str]) -> list[str]:
    """Return lines of imports in order, those from one module as one, without that of torch itself."""
    some: dict[str, set[str]] = {}
    for line in imports:
        start, word, names = line.partition(" import ")
        if word:
            some.setdefault(start, set()).update(names.split(", "))
    lines = [line for line in imports if line.startswith("import ") and line != "import torch"]
    lines += [f"{start} import {', '.join(sorted(names))}" for start, names in some.items()]
    return sorted(lines, key=lambda line: (line.startswith("from"), line))


def report(what: str, differences: Sequence[str]) -> None:
    """Print each difference behind FAIL; `ok` and what was compared where there is none."""
    print("\n".join(f"FAIL {text}" for text in differences) or f"ok   {what}")


def expression(arg: TensorArg, dtype: str, position: int, device: Device) -> tuple[str, list[Needed]]:
    """Return a tensor argument as `ampcheck.samples.tensors.host_tensor` makes it, and the functions that it names."""
    where = "cpu" if arg.device == "cpu" else device.type
    if not device.has_values:
        return f"torch.empty({arg.shape}, dtype={DTYPES[dtype]}, device={where!r})", []
    needed: list[Needed] = []
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
        made = f"({made}).transpose(-2, -1).clone(memory_format=torch.contiguous_format).transpose(-2, -1)"
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


class PlainProgram:
    """A program in the making: `inputs`, which makes the tensors of a call, `call`, and what a check adds to them.

    `needed`: the functions and classes that its blocks name. `made`: how each tensor is made. `layout`: lays out each
    floating tensor. `where`: stands before each difference, as of `ampcheck.checks.forward.judged_at`.
    """

    def __init__(
        self, device: Device, todo: CallPlan, layout: Callable[..., object] | None = None, where: str = ""
    ) -> None:
        self.device, self.todo, self.where = device, todo, where
        self.needed: list[Needed] = [report, *([layout] if layout else [])]
        self.made: list[str] = []
        for place, (leaf, given) in enumerate(zip(leaves(todo.sample), todo.given, strict=True)):
            text, functions = expression(leaf, given.dtype, place, device)
            laid_out = layout and DTYPES[given.dtype].is_floating_point
            self.made.append(f"{layout.__name__}({text})" if layout and laid_out else text)
            self.needed += functions
        listed = "\n".join(["[", *(f"        {text}," for text in self.made), "    ]"])
        listed = listed if len(self.made) > 1 else f"[{''.join(self.made)}]"
        seeded = "" if todo.op.values == "exact" else "    torch.manual_seed(0)\n"
        parameters = ", ".join(source.names(todo.sample))
        inputs = f"def inputs():\n{seeded}    return {listed}"
        self.blocks = [inputs, f"def call({parameters}):\n    return {written_call(todo)}"]
        filled = todo.sample.call == "aten" and todo.expected.dtype_kwarg
        self.reference = "reference" if filled else "call"

    def add(self, needed: Sequence[Needed], *blocks: str) -> None:
        """Add blocks, and what they need."""
        self.needed += needed
        self.blocks += blocks

    def cpu_inputs(self) -> str:
        """Return the expression of the inputs as the CPU has them, before they are copied to the device."""
        on = f".to({self.device.type!r}"
        if on in self.blocks[0]:
            self.blocks[0] = self.blocks[0].replace("inputs()", f"inputs(device={self.device.type!r})", 1)
            self.blocks[0] = self.blocks[0].replace(on, ".to(device")
        return 'inputs("cpu")' if ".to(device" in self.blocks[0] else "(x.cpu() for x in inputs())"

    def say(self, what: str, found: str) -> str:
        """Return the line that reports the differences which an expression gives."""
        found = f'[f"{self.where}: {{text}}" for text in {found}]' if self.where else found
        return f"report({what!r}, {found})"

    def text(self, modules: Sequence[str]) -> str:
        """Return the program."""
        return written(self.device, modules, self.needed, self.blocks)


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
