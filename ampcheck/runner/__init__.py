"""Runs the suites and says what came of it: what red cases have in common, and whether it shows outside of ampcheck."""
