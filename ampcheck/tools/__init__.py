"""Tools for users' code, a folder each: explain, trace, lint, watch; coverage counts what the suites reach."""
