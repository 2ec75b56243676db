"""Autocast for TorchScript as eager has it: a pass over the graph, and the operators it puts there.

    rewritten = ampcheck.torchscript.autocast(torch.jit.script(function))

Importing this registers the operators, which a saved program needs to be loaded; see docs/torchscript.md.
"""

from ampcheck.torchscript.library import load

OPERATORS = load()
"""Which operators this process has, in a sentence: those of the library, or those written in Python, and why."""

from ampcheck.torchscript.rewrite import autocast  # noqa: E402  # scripts code that calls the operators

__all__ = ["OPERATORS", "autocast"]
