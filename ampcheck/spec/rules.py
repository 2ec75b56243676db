"""The rules: what PyTorch promises of autocast, one name and one sentence each.

Each case of the suites names its rule, so `pytest suites -k promote` runs the rule everywhere. In a suite, the rules
about ops are functions of `test_ops.py`, held equal to this list by a test; every other rule is a file or a folder.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path


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
