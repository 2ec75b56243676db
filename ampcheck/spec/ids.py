"""Case ids: one function makes them, one takes the dtype assignment out of them again.

`op-inputs-amp-device`, e.g. `atan2-fp32_bf16-bf16-cpu`. A sample other than an op's main one stands behind a plus sign:
`mm+method-fp32-bf16-cpu`. An executor stands before the region's dtype:
`mm-fp32-dynamo-bf16-cpu`. Ids are stable: a published run can be compared with one made years later.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from ampcheck.errors import UsageError
from ampcheck.spec.executors import EXECUTORS

MAX_LENGTH = 79
_SHELL_SAFE = re.compile(r"[A-Za-z0-9_.+-]+")

# An op's name must hold no dtype, rule or device token, else `-k cpu` would select it on every device.
_ALIASES = {
    "_grid_sampler_2d_cpu_fallback": "_grid_sampler_2d_fallback",
    "_convolution.deprecated": "_convolution.old",
}


def op_token(op: str, sample: str = "") -> str:
    """How an op, and a sample other than its main one, is written in an id."""
    name = _ALIASES.get(op, op)
    return f"{name}+{sample}" if sample else name


def case_id(op: str, sample: str, inputs: str, amp: str, device_token: str, executor: str = "") -> str:
    """The id of a case. Raises ValueError where it would be too long or hold a character shells interpret."""
    parts = [op_token(op, sample), inputs, executor, amp, device_token]
    text = "-".join(part for part in parts if part)
    if len(text) > MAX_LENGTH or not _SHELL_SAFE.fullmatch(text):
        raise ValueError(
            f"case id {text!r} is longer than {MAX_LENGTH} or holds a character outside {_SHELL_SAFE.pattern}"
        )
    return text


_ONE_OFF = re.compile(r"(?P<base>\w+?)_(?P<other>\w+?)at(?P<position>\d+)")


def assign(inputs: str, count: int) -> tuple[str, ...]:
    """The dtype of each of `count` floating arguments.

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
    """The token for `count` arguments of dtype `base` but one of dtype `other`; the inverse of `assign`."""
    if count == 1:
        return other
    if count == 2:
        return f"{other}_{base}" if position == 0 else f"{base}_{other}"
    return f"{base}_{other}at{position}"


@dataclass(frozen=True, slots=True)
class Parsed:
    """A case as far as its name tells: `id`, and the parts of it."""

    suite: str
    rule: str
    id: str

    @property
    def key(self) -> str:
        """Its name across runs: `suite/rule/id`."""
        return f"{self.suite}/{self.rule}/{self.id}"

    @property
    def name(self) -> str:
        """What deviations call it."""
        return named(self.suite, self.rule, self.id, self.fields()["executor"])

    def fields(self) -> dict[str, str]:
        """The fields of a result that the name tells. The device is the id's token."""
        head, *middle, amp, device = self.id.split("-") if self.id.count("-") >= 2 else (self.id, "", "")
        op, _, sample = head.partition("+")
        executor = executor_of(middle)
        return {
            "id": self.id,
            "suite": self.suite,
            "rule": self.rule,
            "op": op,
            "sample": sample,
            "inputs": "-".join(word for word in middle if word != executor),
            "amp": amp,
            "device": device,
            "executor": executor,
        }


def executor_of(words: Sequence[str]) -> str:
    """The executor among the words of an id, or ""."""
    return next((word for word in words if word in EXECUTORS), "")


def named(suite: str, rule: str, case: str, executor: str) -> str:
    """What deviations call a case: `rule/id` in every suite, but `suite/rule/id` for one with an executor."""
    return f"{suite}/{rule}/{case}" if executor else f"{rule}/{case}"


def rule_of(stem: str) -> str:
    """The rule of a suite file, given its name without ".py": `test_cache` and `test_cache__results` are of `cache`."""
    return stem.removeprefix("test_").partition("__")[0]


_SHARD = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Shard:
    """A fixed share of all cases: share `number`, from 1, of `count`."""

    number: int
    count: int

    @staticmethod
    def parse(text: str) -> Shard:
        """Read the form "2/8". Raises UsageError for another form, and for a number beyond the count."""
        match = _SHARD.fullmatch(text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"{text!r} is not a shard; write NUMBER/COUNT with a number from 1 to COUNT, as in 2/8")
        return Shard(int(match[1]), int(match[2]))

    def has(self, key: str) -> bool:
        """Whether a case `suite/rule/id` belongs to it, by its key alone, whatever other cases there are."""
        return int.from_bytes(sha256(key.encode()).digest()[:8]) % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


_NODE = re.compile(r"(?:.*/)?(?P<suite>\w+)/(?P<stem>test_\w+)\.py::test_(?P<name>\w+)\[(?P<params>.+)\]")


def parse_node(node: str) -> Parsed:
    """The case of a pytest node id. A scenario's id is its function's name and its parameters, the executor last."""
    match = _NODE.fullmatch(node)
    if match is None:
        raise ValueError(f"{node!r} is no node id of a case")
    rule = rule_of(match["stem"])
    words = match["params"].split("-")
    if (executor := executor_of(words[:-2])) and words[-3] != executor:
        words.remove(executor)
        words.insert(-2, executor)
    own = match["name"] == rule
    return Parsed(match["suite"], rule, "-".join(words if own else [match["name"], *words]))


def parse_key(key: str) -> Parsed:
    """The case of a key `suite/rule/id`. Raises UsageError for another form."""
    parts = key.split("/")
    if len(parts) != 3 or not all(parts):
        raise UsageError(f"{key!r} is no case; a case is written suite/rule/id")
    return Parsed(*parts)
