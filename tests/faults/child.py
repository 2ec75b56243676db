"""Runs the faults of a device that its process alone can have: `python -m tests.faults.child DEVICE`.

Each line read is a JSON list of what to do, `run` or `rerun`, and the name of a fault; each is answered with a line.
"""

from __future__ import annotations

import json
import os
import sys

from tests.faults import CONTROLS, FAULTS
from tests.faults.runner import Runner, chosen

MODULES = {"npy": "numpy_backend"}
"""The modules of devices whose name is another one."""


def main(device: str) -> None:
    """Answer until there is nothing more to read."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the output of cases is not an answer
    faults = {fault.name: fault for fault in (*FAULTS, *CONTROLS) if fault.device == device}
    options = chosen(device)
    if device == "jax":
        import ampcheck.jax_device  # noqa: F401  # makes the device
    else:
        options.append(f"--device-module={MODULES.get(device, device)}")
    runner = Runner(*options)
    for line in sys.stdin:
        what, name = json.loads(line)
        print(json.dumps(getattr(runner, what)(faults[name])), file=answers, flush=True)
    os._exit(0)  # taking a device down takes long, and nothing is left to be written


if __name__ == "__main__":
    main(sys.argv[1])
