"""Read the time that the TPU compiler expects a program to take: cycles of instructions, and copies beside them.

XLA's own sum, `optimal_seconds`, does not serve here. It knows no passes of the matrix unit, so that a float32 product
in six of them takes as long as one in bf16; it counts copies into the memory on the chip as work; and each instruction
that it knows nothing of takes -1 s, which every training step has some of.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ampcheck.bench.tpu.program import CALLS, NO_WORK, Array, Computation, HloProgram, Instruction

_NAMES_ONLY = ("ConcatBitcast", "X64SplitLow", "X64SplitHigh", "X64Combine", "AssumeGatherIndicesInBound")
"""Custom calls that give what is there another name."""
SMALL = 1 << 16
"""Bytes below which an instruction without cycles is not worth a word."""


@dataclass(slots=True)
class Schedule:
    """The time of a program's instructions one after the other, copies between HBM and the chip beside them.

    `seconds` in all, of which `guessed` are those of instructions that the compiler gives no cycles, by the bytes they
    move; `without` says how many of each opcode. `cycles`: the sum of the compiler's. `hbm`: bytes read from and
    written to HBM. `loops`: how many loops there are, each body counted once.
    """

    seconds: float = 0.0
    guessed: float = 0.0
    cycles: int = 0
    hbm: int = 0
    loops: int = 0
    without: Counter[str] = field(default_factory=Counter)


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
        if opcode in NO_WORK or _names_only(instruction):
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
                total.guessed += moved / bandwidth
                total.seconds += moved / bandwidth
                if sum(a.bytes for a in instruction.results) >= SMALL:
                    total.without[_kind(program, computation, instruction)] += 1
    total.seconds = max(total.seconds, free)
    return total


def _names_only(instruction: Instruction) -> bool:
    return instruction.opcode == "custom-call" and any(f'"{name}"' in instruction.attributes for name in _NAMES_ONLY)


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
