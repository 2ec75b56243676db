"""The shim for the `amp` of a scenario: a class made of the attributes that it uses."""

from __future__ import annotations

from collections.abc import Iterable

from ampcheck.devices.base import Device
from ampcheck.reproduce import methods

_MAKES = "    return {region}("
SIMULATE_CUDA = """\
@contextmanager
def simulate_cuda():  # torch.autocast("cuda") switches itself off where CUDA is absent
    absent, supported = "torch.cuda.amp.common.amp_definitely_not_available", "torch.cuda.is_bf16_supported"
    with patch(absent, lambda: False), patch(supported, lambda *args: True):
        yield"""


def absent(device: Device) -> bool:
    """Return whether regions of the device have to be told that it is there; see `ampcheck.devices.virtual`."""
    return device.type == "cuda" and not device.has_values


def amp_class(used: Iterable[str], device: Device, facts: dict[str, object], *, simulate_cuda: bool) -> str:
    """Return the class `amp` with the attributes used.

    `facts`: the values that the texts name in braces. `simulate_cuda`: whether regions need the check for CUDA patched.
    """
    wanted = _with_needs(used)
    parts: list[str] = []
    own: list[str] = []
    for name, attribute in methods.ATTRIBUTES.items():
        if name in wanted:
            text = attribute.text if device.has_values else attribute.fake or attribute.text
            if simulate_cuda and absent(device):
                text = text.replace(_MAKES, f"    with simulate_cuda():\n    {_MAKES}")
            (own if name.startswith("device.") else parts).append(text.format(**facts))
    if own:
        parts.append("class device:\n" + "\n".join(_indented(text) for text in own))
    body = "\n".join(_indented(text) for text in parts) or "    pass"
    return f"class amp:\n{body}"


def needs_recorder(used: Iterable[str]) -> bool:
    """Return whether one of the attributes needs the recorder."""
    return "recorder" in _with_needs(used)


def _with_needs(used: Iterable[str]) -> set[str]:
    wanted: set[str] = set()
    waiting = list(used)
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += methods.ATTRIBUTES[name].needs if name in methods.ATTRIBUTES else ()
    return wanted


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())
