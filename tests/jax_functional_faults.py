"""Plants a fault of checkpoints or of torch.func and runs its slice of the suites on the device jax."""

from __future__ import annotations

import contextlib
import sys

import pytest

from tests.faults import FAULTS


def main(name: str, run_file: str) -> int:
    """The exit status of the slice of fault `name`, or with no fault planted where the name ends with "!"."""
    fault = next(fault for fault in FAULTS if fault.name == name.rstrip("!"))
    planted = contextlib.nullcontext() if name.endswith("!") else fault.plant()
    *slice_, only = fault.slice
    if fault.rule == "checkpoint":  # what the other variant finds in a hook ends the process on this device
        only = f"({only}) and reentrant"
    arguments = [*(word.replace("--device=cpu", "--device=jax") for word in slice_), only]
    with planted:
        return int(
            pytest.main([*arguments, "-q", "-n", "0", "--tb=no", "-p", "no:cacheprovider", f"--run-file={run_file}"])
        )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
