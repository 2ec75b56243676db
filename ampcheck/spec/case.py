"""A case and what it names: its rule, its compiler, its id and its shard. No torch and no compiler is imported.

`op-inputs-amp-device`, e.g. `atan2-fp32_bf16-bf16-cpu`. A sample other than an op's main one follows a plus sign:
`mm+method-fp32-bf16-cpu`. A compiler comes before the region's dtype:
`mm-fp32-dynamo-bf16-cpu`. An id is a label: what it says is in the fields of the case, too. Ids are stable: a published
run can be compared with one made years later.

Each case of the suites names its rule, so `pytest suites -k promote` runs the rule everywhere. In a suite, the rules
about ops are functions of `test_ops.py`, held equal to this list by a test; every other rule is a file or a folder.
"""

import re
import tomllib
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from ampcheck.errors import UsageError


@dataclass(frozen=True, slots=True)
class Rule:
    """One promise.

    `sentence`: the promise, in the present tense. `source`: where PyTorch makes it. `since`, `until`: torch versions.
    `autograd`: whether it is about PyTorch's gradients, so that a device with another autograd has no part in it.
    """

    name: str
    sentence: str
    source: str
    since: str = "1.10"
    until: str | None = None
    autograd: bool = False


_FILE = Path(__file__).parent / "tables" / "rules.toml"
RULES = {name: Rule(name, **fields) for name, fields in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()}
"""Every rule by name."""

COMPILERS = {
    "script": "torch.jit.script",
    "traced": "torch.jit.trace with autocast's cache off",
    "dynamo": 'torch.compile(backend="eager"): the graph that Dynamo captured, run as it is',
    "aot": 'torch.compile(backend="aot_eager"): forward and backward graphs of ATen ops, run as they are',
    "inductor": 'torch.compile(backend="inductor")',
    "export": "torch.export.export(strict=False).module()",
    "strict": "torch.export.export(strict=True).module()",
    "decomposed": "torch.export.export(strict=False).run_decompositions().module()",
    "packaged": "AOTInductor: torch.export.export(strict=False), compiled to a package of machine code and loaded",
    "jaxcompile": 'torch.compile(backend="jax"): forward and backward as XLA programs',
    "jaxjit": "ampcheck.jax_device.jit: the program whole as one XLA program",
}
"""No name occurs in another one, in an op, a scenario or a device token, so that `-k NAME` selects that compiler."""

ANYWHERE = ("script", "traced", "dynamo", "aot", "export", "strict", "decomposed")
"""Those that take programs on every device type that PyTorch's compilers know, fake tensors included."""
TRACEABLE = tuple(name for name in COMPILERS if name != "script")
"""Those that take a function as it is written; TorchScript reads its source."""
DYNAMO = ("dynamo", "aot", "inductor", "jaxcompile")
"""The backends of torch.compile, which may break a graph."""
GUARDED = (*DYNAMO, "jaxjit")
"""Those whose programs are compiled anew where the state that they are called in is another one."""

MAX_LENGTH = 79
_SHELL_SAFE = re.compile(r"[A-Za-z0-9_.+-]+")

# An op's name must hold no dtype, rule or device token, else `-k cpu` would select it on every device.
_ALIASES = {
    "_grid_sampler_2d_cpu_fallback": "_grid_sampler_2d_fallback",
    "_convolution.deprecated": "_convolution.old",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "_scaled_dot_product_flash_attention_fallback",
}


def op_token(op: str, sample: str = "") -> str:
    """Return an op, and a sample other than its main one, as an id writes it."""
    name = _ALIASES.get(op, op)
    return f"{name}+{sample}" if sample else name


def case_id(op: str, sample: str, inputs: str, amp: str, device_token: str, compiler: str = "") -> str:
    """Return the id of a case; a name too long for it is cut, else its inputs, with a digest of the part cut off.

    Raises ValueError where it would be too long all the same, or hold a character shells interpret.
    """
    name, parts = op_token(op, sample), (inputs, compiler, amp, device_token)
    text = "-".join(part for part in (name, *parts) if part)
    for cut in (name, "-".join(part for part in (name, inputs) if part)):
        rest = text.removeprefix(cut)
        if len(text) > MAX_LENGTH and (room := MAX_LENGTH - len(rest) - 7) > 0:
            text = f"{cut[:room]}.{sha256(cut.encode()).hexdigest()[:6]}{rest}"
    if len(text) > MAX_LENGTH or not _SHELL_SAFE.fullmatch(text):
        raise ValueError(
            f"case id {text!r} is longer than {MAX_LENGTH} or holds a character outside {_SHELL_SAFE.pattern}"
        )
    return text


_ONE_OFF = re.compile(r"(?P<base>\w+?)_(?P<other>\w+?)at(?P<position>\d+)")


def assign(inputs: str, count: int) -> tuple[str, ...]:
    """Return the dtype of each of `count` floating arguments.

    "fp32": all of them. "fp32_bf16": the first and the second of two. "bf16_fp32at2": all bf16 but number 2, from 0.
    """
    if match := _ONE_OFF.fullmatch(inputs):
        dtypes = [match["base"]] * count
        if int(match["position"]) >= count:
            raise ValueError(f"{inputs!r} names argument {match['position']} of {count}")
        dtypes[int(match["position"])] = match["other"]
        return tuple(dtypes)
    parts = inputs.split("_")
    if len(parts) == 1:
        return (inputs,) * count
    if len(parts) != count:
        raise ValueError(f"{inputs!r} names {len(parts)} dtypes for {count} arguments")
    return tuple(parts)


def one_off(base: str, other: str, position: int, count: int) -> str:
    """Return the token for `count` arguments of dtype `base` but one of dtype `other`; the inverse of `assign`."""
    if count == 1:
        return other
    if count == 2:
        return f"{other}_{base}" if position == 0 else f"{base}_{other}"
    return f"{base}_{other}at{position}"


_SHARD = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Shard:
    """A fixed share of all cases: share `number`, from 1, of `count`."""

    number: int
    count: int

    @staticmethod
    def parse(text: str) -> "Shard":
        """Read the form "2/8". Raises UsageError for another form, and for a number beyond the count."""
        match = _SHARD.fullmatch(text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"{text!r} is not a shard; write NUMBER/COUNT with a number from 1 to COUNT, as in 2/8")
        return Shard(int(match[1]), int(match[2]))

    def has(self, key: str) -> bool:
        """Return whether a case `suite/rule/id` belongs to it, by its key alone, whatever the other cases."""
        return int.from_bytes(sha256(key.encode()).digest()[:8]) % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def check_key(key: str) -> str:
    """Return a case's key. Raises UsageError for a text of another form than `suite/rule/id`."""
    parts = key.split("/")
    if len(parts) != 3 or not all(parts):
        raise UsageError(f"{key!r} is not a case; a case is written suite/rule/id")
    return key


AROUND = "around"
"""The sample of a compiled case whose region is around the compiled function, not inside."""

CELLS = "cells"
"""The sample of a case that sweeps the cells of an op; its `inputs` is a gradient mode. See `ampcheck.checks.sweep`."""

GRADIENT = "-grad"
"""The end of the dtype assignment of a case whose gradient is checked."""


@dataclass(frozen=True)
class Case:
    """One thing to run and check.

    `suite`: eager, jit, autograd or scaler. `rule`: a name of `ampcheck.spec.case`. `op`: an overload, or the name of
    a scenario. `sample`: "" for the op's main sample. `inputs`: the dtype assignment, as `ampcheck.spec.case.assign`
    reads it. `amp`: the region's dtype. `device`: the device's name on the command line, `token` its name in ids.
    `compiler`: what runs it, a name of `ampcheck.spec.case`; "" for a suite that runs everything in one way.
    """

    suite: str
    rule: str
    op: str
    sample: str
    inputs: str
    amp: str
    device: str
    token: str
    compiler: str = ""

    @cached_property
    def id(self) -> str:
        return case_id(self.op, self.sample, self.inputs, self.amp, self.token, self.compiler)

    @property
    def key(self) -> str:
        """Its name across runs: `suite/rule/id`."""
        return f"{self.suite}/{self.rule}/{self.id}"

    @property
    def name(self) -> str:
        """Return its name in deviations; see `deviation_name`."""
        return deviation_name(self.suite, self.rule, self.id, self.compiler)

    def fields(self) -> dict[str, str]:
        """Return the fields of a result that are known before the case runs, without empty ones: JSON, for a child."""
        known = {name: value for name, value in asdict(self).items() if value and name != "token"}
        return {"id": self.id, **known}


def deviation_name(suite: str, rule: str, case: str, compiler: str) -> str:
    """Return a case's name in deviations: `rule/id` in every suite, but `suite/rule/id` for one with a compiler."""
    return f"{suite}/{rule}/{case}" if compiler else f"{rule}/{case}"
