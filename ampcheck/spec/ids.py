"""Case ids, dtype assignments and shards.

`op-inputs-amp-device`, e.g. `atan2-fp32_bf16-bf16-cpu`. A sample other than an op's main one follows a plus sign:
`mm+method-fp32-bf16-cpu`. A compiler comes before the region's dtype:
`mm-fp32-dynamo-bf16-cpu`. An id is a label: what it says is in the fields of the case, too. Ids are stable: a published
run can be compared with one made years later.
"""

import re
from dataclasses import dataclass
from hashlib import sha256

from ampcheck.errors import UsageError

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
