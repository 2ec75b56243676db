"""The stand-in for the `amp` of a scenario: a class made of the members that it uses."""

from __future__ import annotations

from collections.abc import Iterable

from ampcheck.devices.base import Device
from ampcheck.reproduce import methods

_MAKES = "    return {region}("
THERE = """\
@contextmanager
def there():  # torch.autocast("cuda") switches itself off where CUDA is absent
    absent, supported = "torch.cuda.amp.common.amp_definitely_not_available", "torch.cuda.is_bf16_supported"
    with patch(absent, lambda: False), patch(supported, lambda *args: True):
        yield"""


def absent(device: Device) -> bool:
    """Whether the device is one whose regions have to be told that it is there; see `ampcheck.devices.virtual`."""
    return device.type == "cuda" and not device.has_values


def stand_in(used: Iterable[str], device: Device, facts: dict[str, object], *, there: bool) -> str:
    """The class `amp` with the members used.

    `facts`: the values that the texts name in braces. `there`: whether regions have to be told of absent hardware.
    """
    wanted = _with_needs(used)
    parts: list[str] = []
    own: list[str] = []
    for name, member in methods.MEMBERS.items():
        if name in wanted:
            text = member.text if device.has_values else member.fake or member.text
            if there and absent(device):
                text = text.replace(_MAKES, f"    with there():\n    {_MAKES}")
            (own if name.startswith("device.") else parts).append(text.format(**facts))
    if own:
        parts.append("class device:\n" + "\n".join(_indented(text) for text in own))
    body = "\n".join(_indented(text) for text in parts) or "    pass"
    return f"class amp:\n{body}"


def needs_recorder(used: Iterable[str]) -> bool:
    """Whether one of the members needs the recorder."""
    return "recorder" in _with_needs(used)


def _with_needs(used: Iterable[str]) -> set[str]:
    wanted: set[str] = set()
    waiting = list(used)
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += methods.MEMBERS[name].needs if name in methods.MEMBERS else ()
    return wanted


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())
