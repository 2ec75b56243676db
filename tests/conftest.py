"""What a session of the tests needs before its first test."""

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    """Enter the emulated device once where tests use it: autograd's engine knows no device that came after it began."""
    if any(item.path.stem in ("test_preflight", "test_emulated", "test_cuda") for item in session.items):
        from ampcheck.devices.registry import known  # noqa: PLC0415  # loads torch

        device = known()["emulated:cuda"]
        if device.unavailable() is None:
            with device.activate():
                pass
