"""The subcommands of `ampcheck`, a module each: `add` declares its options, `run` does the work.

A module imports torch, and what needs it, inside `run`, so that `--help` is quick and bad options are told at once.
"""
