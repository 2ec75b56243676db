"""Collect tests inside of a test: as `pytest.main` does, but the items stay and can be run."""

from collections.abc import Mapping, Sequence

import pytest
from _pytest.config import _prepareconfig

Result = Mapping[str, str]
"""What became of a case: `id`, `suite`, `rule`, `status`, `message` and so on, as in a run file."""

_PLUGINS = ("benchmark", "cacheprovider", "faulthandler", "unraisableexception", "threadexception", "xdist")
OPTIONS = (*(word for plugin in _PLUGINS for word in ("-p", f"no:{plugin}")), "--tb=no", "--capture=no", "-qq")


class _Whole:
    """Raise where something cannot be collected."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        assert not report.failed, report.longreprtext


def collected(arguments: Sequence[str], *plugins: object) -> tuple[pytest.Config, list[pytest.Item]]:
    """Return pytest's configuration of a command line, to be unconfigured at the end, and its tests."""
    config = _prepareconfig([*arguments, *OPTIONS, "--collect-only"], plugins=[_Whole(), *plugins])
    config._do_configure()
    config.pluginmanager.unregister(name="terminalreporter")
    session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    config.hook.pytest_collection(session=session)
    return config, session.items
