"""Strictness and the plugin, for the suites and for the tests of ampcheck itself."""

import os

pytest_plugins = ("ampcheck.runner.plugin",)

# JAX does not write its kept programs at once, so two processes that run at the same time share none.
_KEPT, _WORKER = (os.environ.get(name, "") for name in ("JAX_COMPILATION_CACHE_DIR", "PYTEST_XDIST_WORKER"))
if _KEPT and _WORKER and not _KEPT.endswith(_WORKER):
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(_KEPT, _WORKER)
