"""Ask NVIDIA's driver, without torch and without a context on the GPU."""

import subprocess


def asked(fields: str, *, of: str = "gpu", gpu: str = "") -> list[list[str]]:
    """Return a row for each GPU, or of each program on one (`of="compute-apps"`); none where there is no driver.

    `fields`: as `nvidia-smi --help-query-gpu` names them, joined by commas. `gpu`: one by its number or UUID. Numbers
    come without their units.
    """
    command = [
        "nvidia-smi",
        f"--query-{of}={fields}",
        "--format=csv,noheader,nounits",
        *([f"--id={gpu}"] if gpu else []),
    ]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[field.strip() for field in line.split(",")] for line in said.splitlines() if line.strip()]
