"""`check_scripted`: a program compiled and run beside itself, in each autocast state, and every difference reported."""

import ast
import inspect
import linecache
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from traceback import walk_stack
from typing import Any, NamedTuple, cast

import torch

from ampcheck.compilers.kinds import COMPILERS, quiet
from ampcheck.errors import UsageError
from ampcheck.observe.recorder import tensors
from ampcheck.spec.torch_dtypes import name_of
from ampcheck.tools.lint.names import Function, LintedRegion, Names, With, last_line, region
from ampcheck.tools.lint.program import LintedProgram, decorators
from ampcheck.tools.lint.record import Place, Program, RecordedRun, as_python, in_both, record, same_values
from ampcheck.tools.lint.rules import LINTED, RULES, Diagnostic, broken, place
from ampcheck.tools.lint.static import visited

_LOW = (torch.bfloat16, torch.float16)
_UNKNOWN = "look at the region around this line; `ampcheck lint --rules` lists what compilers do to regions"
# TorchScript's autocast frees these nodes and goes on with them (docs/findings, script-query-crashes).
_FATAL = ("is_autocast_enabled", "is_autocast_cpu_enabled")
# c10/core/ScalarType.h
_NUMBERS = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}


class Differs(AssertionError):
    """Raised by `check_scripted` on request; `diagnostics` are the differences."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        super().__init__("\n".join(map(str, diagnostics)))
        self.diagnostics = list(diagnostics)


def check_scripted(
    program: Program,
    *example_inputs: object,
    compiled: object = None,
    compilers: Sequence[str] = tuple(LINTED),
    raise_on_difference: bool = False,
) -> list[Diagnostic]:
    """Every way in which a program under autocast does another thing when it is compiled; empty where it agrees.

    The program runs eagerly and compiled, on copies of the example inputs: outside of regions, in one of the device
    type's default dtype, and in one of the other lower precision. Compared are the dtypes that kernels receive, the
    results, what is raised, and the autocast state afterwards.

    Args:
        program: a function or module; or a function that was scripted or traced, beside the Python it was made of.
        example_inputs: at least one tensor among them; all tensors on one device.
        compiled: the program as it was scripted, traced or exported before. By default it is compiled here.
        compilers: by which compilers: "script", "traced", "fx", "export". Without meaning where `compiled` is given.
        raise_on_difference: raise `Differs`, an AssertionError, where there is a difference.

    Raises UsageError for what cannot be compared.
    """
    for compiler in compilers:
        if compiler not in LINTED:
            raise UsageError(f"there is no compiler {compiler!r}; there are {', '.join(LINTED)}")
    device = _device(program, example_inputs)
    if compiled is None and isinstance(program, torch.jit.ScriptFunction):
        compiled = program
    eager = _eager(program)
    with quiet():
        if compiled is not None:
            found = list(_compare(eager, compiled, _compiler_of(compiled), example_inputs, device))
        else:
            found = [one for compiler in compilers for one in _by_compiler(eager, compiler, example_inputs, device)]
    found = sorted(set(found))
    if found and raise_on_difference:
        raise Differs(found)
    return found


def _device(program: object, inputs: Sequence[object]) -> str:
    held = list(program.parameters()) if isinstance(program, torch.nn.Module) else []
    types = sorted({tensor.device.type for tensor in (*tensors(list(inputs)), *held)})
    if len(types) != 1:
        raise UsageError(f"the example inputs are on {', '.join(types) or 'no device'}; they must be on one")
    if not torch.amp.is_autocast_available(types[0]):
        raise UsageError(f"there is no autocast on {types[0]!r}")
    return types[0]


def _eager(program: object) -> Program:
    if isinstance(program, torch.jit.ScriptFunction):
        python = getattr(program, "_torchdynamo_inline", None)
        if python is None:
            raise UsageError("the program was loaded as TorchScript; give the Python function too, and it as compiled=")
        return cast(Program, python)
    if isinstance(program, (torch.jit.ScriptModule, torch.export.ExportedProgram, torch.fx.GraphModule)):
        raise UsageError("the program is compiled; give the eager one, and it as compiled=")
    if not callable(program):
        raise UsageError(f"a {type(program).__name__} is not a program")
    return program


def _compiler_of(compiled: object) -> str:
    if isinstance(compiled, torch.export.ExportedProgram):
        return "export"
    if isinstance(compiled, torch.fx.GraphModule):
        return "export" if any("val" in node.meta for node in compiled.graph.nodes) else "fx"
    if isinstance(compiled, (torch.jit.ScriptFunction, torch.jit.ScriptModule)):
        places_ = [place for found in places(compiled).values() for place in found]
        return "traced" if any(place.traced for place in places_) else "script"
    raise UsageError(f"a {type(compiled).__name__} is not a program that was scripted, traced or exported")


def _by_compiler(eager: Program, compiler: str, inputs: Sequence[object], device: str) -> Iterator[Diagnostic]:
    try:
        with torch.autocast(device, enabled=False):
            fx = compiler == "fx"
            compiled = torch.fx.symbolic_trace(eager) if fx else COMPILERS[compiler].make(eager, inputs).call
    except Exception as error:  # a compiler may raise anything
        yield _report(_lines(of_error(error), eager), compiler, "refused", "when it is compiled", "runs", _said(error))
        return
    yield from _compare(eager, compiled, compiler, inputs, device)


def _compare(
    eager: Program, compiled: object, compiler: str, inputs: Sequence[object], device: str
) -> Iterator[Diagnostic]:
    call = compiled.module() if isinstance(compiled, torch.export.ExportedProgram) else cast(Program, compiled)
    default = torch.get_autocast_dtype(device)
    other = next(dtype for dtype in _LOW if dtype != default)
    stands = places(call)
    yield from lost(call)
    fatal = next((one for op in _FATAL for one in stands.get(op, [])), None)
    if fatal is not None and compiler == "script":
        said = ("the state is asked for", "answers", "may end the process, so it was not run")
        yield _report(fatal.lines or _lines(None, eager), compiler, "result", *said)
        return
    for ambient in (None, default, other):
        what = f"in a region of {name_of(ambient)}" if ambient else "outside of regions"
        with as_python():
            want = record(eager, inputs, device, ambient, lines_now)
        for _ in range(2):  # TorchScript optimizes after the first call, and forgets what the first one raised
            got = record(call, inputs, device, ambient, lines_now)
            yield from _differences(eager, compiler, what, got, want, stands)


def _differences(
    eager: Program, compiler: str, what: str, got: RecordedRun, want: RecordedRun, stands: "dict[str, list[Stand]]"
) -> Iterator[Diagnostic]:
    if got.error is not None or want.error is not None:
        if _said(got.error) != _said(want.error):
            place = of_error(got.error) if got.error is not None else None
            yield _report(_lines(place, eager), compiler, "raises", what, _said(want.error), _said(got.error))
        return
    both = in_both(want.kernels, got.kernels, lambda kernel: kernel.op)
    kernels = [(wanted, received) for wanted, received in both if wanted.dtypes != received.dtypes]
    for wanted, received in kernels:
        known = stands.get(wanted.op, [])
        number = sum(kernel.op == wanted.op for kernel in want.kernels[: want.kernels.index(wanted)])
        # The graph's places count only where every op of the name ran once, so no branch or loop is in the way.
        fits = len(known) == sum(kernel.op == wanted.op for kernel in got.kernels)
        stand = known[number] if fits else Stand(())
        lines = (*stand.lines, *wanted.lines) or _lines(None, eager)
        dtypes = [", ".join(map(name_of, kernel.dtypes)) for kernel in (wanted, received)]
        said = (f"gives {wanted.op} {dtypes[0]}", f"gives it {dtypes[1]}")
        yield _report(lines, compiler, "kernel-dtype", f"{wanted.op} {what}", *said, traced=stand.traced)
    end = _lines(None, eager)
    out = [[name_of(x.dtype) for x in run.outputs] for run in (want, got)]
    if out[0] != out[1]:
        if not kernels:
            yield _report(end, compiler, "result", what, *(f"returns {', '.join(d) or 'no tensor'}" for d in out))
    elif not kernels and not same_values(got, want):
        yield _report(end, compiler, "result", what, "returns other values", "returns values of its own")
    if [*map(_plain, want.others)] != [*map(_plain, got.others)]:
        yield _report(end, compiler, "result", what, f"returns {want.others}", f"returns {got.others}")
    if want.state != got.state:
        yield _report(end, compiler, "state-after", what, f"leaves {_state(want)}", f"leaves {_state(got)}")


def _plain(value: object) -> object:
    """TorchScript returns dtypes as numbers."""
    return _NUMBERS.get(value, value) if isinstance(value, torch.dtype) else value


def _state(run: RecordedRun) -> str:
    enabled, dtype, cache, inside = run.state or (False, torch.float32, False, 0)
    words = {True: "on", False: "off"}
    return f"autocast {words[enabled]} in {name_of(dtype)}, the cache {words[cache]}, depth {inside:+d}"


def _lines(place: Place | None, eager: Program) -> tuple[Place, ...]:
    """Return a place, or where the program is defined."""
    if place is not None and place[0]:
        return (place,)
    made: Program = eager.forward if isinstance(eager, torch.nn.Module) else inspect.unwrap(eager)
    try:
        return ((inspect.getsourcefile(made) or "", inspect.getsourcelines(made)[1]),)
    except (TypeError, OSError):
        return (("", 0),)


def _said(error: BaseException | None) -> str:
    if error is None:
        return "runs"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Where the last line marks a place in the source, the message comes before the source.
    last = lines[:1] if "<--- HERE" in "".join(lines[-1:]) else lines[-1:]
    wanted = next((line for line in lines if "autocast" in line.lower()), "".join(last))
    return f"raises {type(error).__name__}: {wanted}"


def _report(
    lines: tuple[Place, ...], compiler: str, kind: str, what: str, eager: str, compiled: str, *, traced: bool = False
) -> Diagnostic:
    """Return a difference under the rule that explains it, or `kind` where none is seen to."""
    silent = kind not in ("refused", "raises")
    why = cause(lines, "traced" if traced else compiler, kind)
    if why is None:
        return Diagnostic(*lines[0], 1, kind, compiler, what, eager, compiled, _UNKNOWN, silent)
    return Diagnostic(*why, compiler, what, eager, compiled, RULES[why[3]].instead, silent)


# What compiles and runs programs is not a part of them.
_LIBRARY = (
    str(Path(torch.__file__).parent),
    *(str(Path(__file__).parents[2] / name) for name in ("tools/lint", "programs", "compilers", "observe")),
)
_TRACED = re.compile(r"^(?P<file>\S.*)\((?P<line>\d+)\): ", re.MULTILINE)
_SCRIPTED = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


class Stand(NamedTuple):
    """The place of an op of a graph: lines, the innermost first. `traced`: whether tracing put it there."""

    lines: tuple[Place, ...]
    traced: bool = False


def places(program: object) -> dict[str, list[Stand]]:
    """For each op of a graph of TorchScript, in order, its place.

    Lines of torch's own files are left out. Empty for another program, and for one whose graph has no places.
    """
    found: dict[str, list[Stand]] = defaultdict(list)
    for node in _nodes(getattr(program, "inlined_graph", None)):
        kind = node.kind()
        if kind.startswith("aten::"):
            text = node.sourceRange()
            traced = _matches(_TRACED, text)
            lines = tuple(traced or _matches(_SCRIPTED, text))
            found[kind.removeprefix("aten::")].append(Stand(lines, bool(traced)))
    return found


def lines_now() -> tuple[Place, ...]:
    """Return the lines of the program that led here, the innermost first."""
    led = takewhile(lambda one: one[0].f_code is not record.__code__, walk_stack(sys._getframe(1)))
    places_ = ((frame.f_code.co_filename, line) for frame, line in led)
    return tuple(place for place in places_ if not place[0].startswith((*_LIBRARY, "<")))


def _matches(pattern: re.Pattern[str], text: str) -> list[Place]:
    found = ((match["file"], int(match["line"])) for match in pattern.finditer(text))
    return [place for place in found if not place[0].startswith(_LIBRARY)]


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes() if block is not None else ():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def of_error(error: BaseException) -> Place | None:
    """Return the line of the program that an error's message names."""
    found = _matches(_SCRIPTED, str(error)) or _matches(_TRACED, str(error))
    return found[-1] if found else None


@lru_cache(maxsize=64)
def _program(text: str) -> LintedProgram | None:
    try:
        return LintedProgram(Names(ast.parse(text)))
    except (SyntaxError, ValueError):
        return None


def parsed(file: str) -> LintedProgram | None:
    """Return a source file as the static linter sees it; None where there is none to read."""
    text = "".join(linecache.getlines(file))  # knows programs that were made of text, too
    return _program(text) if text else None


def function_at(file: str, line: int) -> tuple[LintedProgram, Function] | None:
    """Return a source file as the static linter sees it, and its innermost function around a line; None for none."""
    program = parsed(file)
    functions = (node for node in ast.walk(program.names.tree) if isinstance(node, Function)) if program else ()
    around = [one for one in functions if min(x.lineno for x in (one, *one.decorator_list)) <= line <= last_line(one)]
    return (program, max(around, key=lambda node: node.lineno)) if program and around else None


def _around(function: Function, line: int) -> list[ast.expr]:
    """Return the expressions that with statements around a line enter, the innermost first."""
    blocks = (node for node in ast.walk(function) if isinstance(node, With))
    inside = (node for node in blocks if node.body[0].lineno <= line <= last_line(node))
    return sorted((item.context_expr for node in inside for item in node.items), key=lambda entered: -entered.lineno)


def regions_at(file: str, line: int) -> list[LintedRegion]:
    """Return the regions around a line within its function, the decorators among them, the innermost first."""
    if (found := function_at(file, line)) is None:
        return []
    program, function = found
    made = (region(program.names, entered) for entered in _around(function, line))
    return [one for one in made if one is not None] + decorators(program, function)


def lost(program: object) -> list[Diagnostic]:
    """Return the disabled regions that tracing dropped from a compiled program, its traced callees among it.

    They are found by the lines that the graph's ops were traced at, so a program that a file was loaded from has them
    too, as long as the source is there.
    """
    found = set()
    for node in _nodes(getattr(program, "inlined_graph", None)):
        for file, line in _matches(_TRACED, node.sourceRange()):
            what = f"tracing dropped the disabled region around line {line}"
            dropped = (made.call for made in regions_at(file, line) if made.disabled)
            found |= {broken("lost-in-trace", file, call, "traced", what) for call in dropped}
    return sorted(found)


_OF_WHOLE = {
    "state-after": ("entered-twice", "state-change"),
    "result": ("query-frozen", "query-in-script"),
    "refused": ("decorator", "object-elsewhere", "state-change", "query-in-script"),
    "raises": ("bound", "enabled-not-constant", "device-not-constant", "device-in-script", "object-elsewhere"),
}
"""The rules that explain a difference wherever they are broken in a function, by the kind of the difference."""


def cause(lines: tuple[Place, ...], compiler: str, kind: str) -> tuple[str, int, int, str] | None:
    """Return the file, line and column where the source around some lines breaks a rule, and the rule, or None.

    `kind`: of the difference that is to be explained.
    """
    for file, line in lines:
        if (known := function_at(file, line)) is None:
            continue
        _, function = known
        found = [(node, rule) for node, rule, _ in visited(*known, compiler)]
        around = {id(node) for node in (*_around(function, line), *function.decorator_list)}
        # The line itself explains it best, then what is around it, then what the function does anywhere.
        near = [one for one in found if place(one[0])[0] == line]
        near += [one for one in found if id(one[0]) in around]
        near += [one for one in found if one[1] in _OF_WHOLE.get(kind, ())]
        for node, rule in near:
            return file, *place(node), rule
    return None
