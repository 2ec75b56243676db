"""Tools for users' code: explain, trace, lint, watch; and the measure of the suites' coverage."""
