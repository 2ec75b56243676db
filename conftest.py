"""Strictness and the plugin, for the suites and for the tests of ampcheck itself."""

import os

import pytest

pytest_plugins = ("ampcheck.runner.plugin",)

# JAX does not write its kept programs at once, so two processes that run at the same time share none.
_KEPT, _WORKER = (os.environ.get(name, "") for name in ("JAX_COMPILATION_CACHE_DIR", "PYTEST_XDIST_WORKER"))
if _KEPT and _WORKER and not _KEPT.endswith(_WORKER):
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(_KEPT, _WORKER)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that run each night alone, and count them as deselected."""
    if config.option.nightly:
        return
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    if nightly:
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
