"""Reads a program that XLA has compiled and scheduled: its products and casts, by dtype.

The text is that of JAX's `Compiled.as_text()`; `schedule` adds up what the compiler expects it to take.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](\{[^{}]*\})?")
_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_CALLED = re.compile(
    r"\b(?:calls|body|to_apply|true_computation|false_computation|branch_computations)=(\{[^}]*\}|\S+)"
)
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_PRECISION = re.compile(r"operand_precision=\{(\w+)")

_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128, "token": 0, "opaque": 0}
_NAMES = {"f16": "fp16", "f32": "fp32", "f64": "fp64"}
_PASSES = {"highest": 6, "high": 3}
"""Passes of the matrix unit, which multiplies bf16, for a float32 product of that precision; one by default."""

NO_WORK = frozenset((
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
    "opt-barrier",
))  # fmt: skip
"""Instructions that only give a name to what is there."""
CALLS = ("while", "call", "conditional")
"""Instructions that run the instructions of another computation."""


@dataclass(frozen=True, slots=True)
class Array:
    """An operand or result of an instruction: XLA's name of the dtype, the shape, and whether it lies in HBM."""

    dtype: str
    shape: tuple[int, ...]
    hbm: bool = True

    @property
    def bytes(self) -> int:
        """Its bytes, without padding."""
        digits = re.search(r"\d+", self.dtype)
        bits = _BITS.get(self.dtype) if self.dtype in _BITS else int(digits[0]) if digits else 0
        return prod(self.shape) * (bits or 0) // 8

    def __str__(self) -> str:
        return f"{name_of(self.dtype)}[{','.join(map(str, self.shape))}]"


@dataclass(slots=True)
class Instruction:
    """One line of a computation. `cycles`: what the compiler expects it to take, None where it does not say."""

    name: str
    opcode: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    called: tuple[str, ...]
    cycles: int | None
    attributes: str


Computation = Mapping[str, Instruction]
"""Instructions by name, in the order in which they are run."""


@dataclass(slots=True)
class HloProgram:
    """A compiled module: its computations by name, the instructions of each in the order in which they are run."""

    computations: dict[str, dict[str, Instruction]] = field(default_factory=dict)
    entry: str = ""

    def kernels(self, within: str = "") -> Iterator[tuple[Computation, Instruction]]:
        """Return the instructions in the order they run, each with its computation; a loop's body comes once."""
        computation = self.computations[within or self.entry]
        for instruction in computation.values():
            yield computation, instruction
            if instruction.opcode in CALLS:
                for called in instruction.called:
                    yield from self.kernels(called)

    def parts(self, computation: Computation, instruction: Instruction) -> Iterator[tuple[Computation, Instruction]]:
        """Return the parts of a kernel: the instruction itself, or the instructions that were fused into it."""
        if instruction.opcode not in ("fusion", "async-start"):
            yield computation, instruction
            return
        for called in instruction.called:
            inner = self.computations[called]
            for part in inner.values():
                yield from self.parts(inner, part)


def name_of(dtype: str) -> str:
    """XLA's name of a dtype as this project writes it, e.g. "fp32" for "f32"."""
    return _NAMES.get(dtype, dtype)


def parse(text: str) -> HloProgram:
    """Read the text of a compiled module. Raises ValueError where it has no entry computation."""
    program = HloProgram()
    current: dict[str, Instruction] | None = None
    for line in text.splitlines():
        if current is None:
            header = _COMPUTATION.fullmatch(line)
            if header and not line.startswith("HloModule"):
                current = program.computations.setdefault(header[2], {})
                program.entry = header[2] if header[1] else program.entry
        elif line.startswith("}"):
            current = None
        elif begin := _INSTRUCTION.match(line):
            instruction = _instruction(begin[1], line[begin.end() :])
            if instruction is not None:
                current[begin[1]] = instruction
    if not program.entry:
        raise ValueError("the text has no ENTRY computation: it is not a compiled XLA program")
    return program


def _instruction(name: str, rest: str) -> Instruction | None:
    shape, rest = _split(rest) if rest.startswith("(") else (rest.partition(" ")[0], rest.partition(" ")[2])
    opcode = _OPCODE.match(rest)
    if opcode is None:
        return None
    operands, attributes = _split(rest[opcode.end() - 1 :])
    called = [n for found in _CALLED.findall(attributes) for n in re.findall(r"[\w.\-]+", found.rstrip(","))]
    results = tuple(_array(*found) for found in _ARRAY.findall(shape))
    given, found = tuple(re.findall(r"%([\w.\-]+)", operands)), _CYCLES.search(attributes)
    cycles = int(found[1]) if found else None
    return Instruction(name, opcode[1], results, given, tuple(called), cycles, attributes)


def _split(text: str) -> tuple[str, str]:
    """Split a text into the parenthesis that it begins with and the rest."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return text[1:place], text[place + 1 :]
    return text, ""


def _array(dtype: str, shape: str, layout: str) -> Array:
    return Array(dtype, tuple(int(n) for n in re.findall(r"\d+", shape)), not re.search(r"S\([1-9]", layout))


@dataclass(frozen=True, slots=True)
class DotProduct:
    """A kind of matrix product or convolution: operands' and result's dtypes, and `passes` of a TPU's matrix unit."""

    operands: tuple[str, ...]
    result: str
    passes: int

    def __str__(self) -> str:
        given = "×".join(sorted(set(map(name_of, self.operands))))
        gives = "" if {self.result} == set(self.operands) else f" to {name_of(self.result)}"
        if not self.passes or "f32" not in self.operands:
            return given + gives
        return f"{given}{gives} in {self.passes} bf16 pass{'es' if self.passes > 1 else ''}"


def products(program: HloProgram) -> Counter[DotProduct]:
    """Count the program's products of each kind; one in a loop's body counts once."""
    found: Counter[DotProduct] = Counter()
    for kernel in program.kernels():
        for computation, part in program.parts(*kernel):
            if part.opcode in ("dot", "convolution"):
                given = tuple(sorted(computation[n].results[0].dtype for n in part.operands if n in computation))
                precision = _PRECISION.search(part.attributes)
                passes = (_PASSES.get(precision[1], 1) if precision else 1) if "f32" in given else 1
                found[DotProduct(given, part.results[0].dtype, passes)] += 1
    return found


@dataclass(frozen=True, slots=True)
class HloCast:
    """A conversion between floating point dtypes. `fused`: part of a larger kernel, so that it moves no memory."""

    source: str
    result: Array
    fused: bool

    def __str__(self) -> str:
        return f"{name_of(self.source)} to {self.result}{'' if self.fused else ' by itself'}"


def casts(program: HloProgram) -> Counter[HloCast]:
    """Return the casts that are left in the program, and how often each is there."""
    found: Counter[HloCast] = Counter()
    for kernel in program.kernels():
        parts = list(program.parts(*kernel))
        fused = any(part.opcode not in (*NO_WORK, "convert", "copy") for _, part in parts)
        for computation, part in parts:
            if part.opcode == "convert" and part.operands[0] in computation:
                source, result = computation[part.operands[0]].results[0].dtype, part.results[0]
                if floating(source) and floating(result.dtype) and source != result.dtype:
                    found[HloCast(source, Array(result.dtype, result.shape), fused)] += 1
    return found


def floating(dtype: str) -> bool:
    """Return whether XLA's name of a dtype is one of floating point numbers."""
    return dtype.startswith(("f", "bf"))


def wide(program: HloProgram) -> list[Array]:
    """Return the float64 arrays of more than one element that the program makes, which a TPU computes in software."""
    made = [a for kernel in program.kernels() for _, part in program.parts(*kernel) for a in part.results]
    return [a for a in made if a.dtype in ("f64", "c128") and prod(a.shape) > 1]


_NAMES_ONLY = ("ConcatBitcast", "X64SplitLow", "X64SplitHigh", "X64Combine", "AssumeGatherIndicesInBound")
"""Custom calls that give what is there another name."""
SMALL = 1 << 16
"""Bytes below which an instruction without cycles is not worth a word."""


@dataclass(slots=True)
class Schedule:
    """The time of a program's instructions one after the other, copies between HBM and the chip beside them.

    `seconds` in all, by the bytes they move for instructions that the compiler gives no cycles; `without` says how many
    there are of each opcode. `cycles`: the sum of the compiler's. `hbm`: bytes read from and
    written to HBM. `loops`: how many loops there are, each body counted once. `rated`: how many products have a
    price in a table of rates.
    """

    seconds: float = 0.0
    cycles: int = 0
    hbm: int = 0
    loops: int = 0
    without: Counter[str] = field(default_factory=Counter)
    rated: int = 0


def schedule(program: HloProgram, clock: float, bandwidth: float) -> Schedule:
    """Run through a scheduled program as the chip would: one instruction at a time, one stream of copies beside them.

    Args:
        clock: cycles a second.
        bandwidth: of HBM, bytes a second.
    """
    total = Schedule()
    arrived: dict[str, float] = {}
    free = 0.0  # when the stream of copies has nothing left to do
    for computation, instruction in program.kernels():
        opcode = instruction.opcode
        names_only = opcode == "custom-call" and any(f'"{name}"' in instruction.attributes for name in _NAMES_ONLY)
        if opcode in NO_WORK or names_only:
            continue
        if opcode in CALLS:
            total.loops += opcode == "while"
        elif opcode.endswith("-start") and instruction.cycles is None:
            size, sides = _copied(computation, instruction)
            free = max(total.seconds, free) + sides * size / bandwidth
            arrived[instruction.name] = free
            total.hbm += sides * size
        elif opcode.endswith("-done"):
            total.seconds = max(total.seconds, *(arrived.get(name, 0.0) for name in instruction.operands))
        else:
            given = [a for name in instruction.operands if name in computation for a in computation[name].results]
            moved = sum(a.bytes for a in (*given, *instruction.results) if a.hbm)
            total.hbm += moved
            if instruction.cycles is not None:
                total.cycles += instruction.cycles
                total.seconds += instruction.cycles / clock
            else:
                total.seconds += moved / bandwidth
                if sum(a.bytes for a in instruction.results) >= SMALL:
                    total.without[_kind(program, computation, instruction)] += 1
    total.seconds = max(total.seconds, free)
    return total


def _copied(computation: Computation, instruction: Instruction) -> tuple[int, int]:
    """Of a copy that is started: its bytes, and how many of its two ends lie in HBM."""
    sources = [a for name in instruction.operands if name in computation for a in computation[name].results]
    ends: list[Array] = [*sources[:1], *(a for a in instruction.results if a.shape and a not in sources)]
    if len(ends) < 2:  # from HBM to HBM, both ends alike
        return (ends[0].bytes, 2 * ends[0].hbm) if ends else (0, 0)
    return min(a.bytes for a in ends), sum(a.hbm for a in ends[:2])


def _kind(program: HloProgram, computation: Computation, instruction: Instruction) -> str:
    """Return the kind of an instruction: its opcode, of a fusion the rarest thing in it."""
    parts = [part.opcode for _, part in program.parts(computation, instruction)]
    telling = ("gather", "scatter", "sort", "custom-call", "dynamic-update-slice", "reduce-window")
    return next((opcode for opcode in telling if opcode in parts), instruction.opcode)
