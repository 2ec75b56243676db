"""Strictness and the plugin, for the suites and for the tests of ampcheck itself."""

pytest_plugins = ("ampcheck.plugin",)
