"""What PyTorch does at each compilation without an effect on what comes out, and what the suites leave out of it.

A run compiles thousands of small programs, of which these parts took half of the time. Nothing is imported here: what
a process has not loaded is left as it is, and so is what a torch does not have.
"""

import sys
import threading
import typing
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch


def _listed_once(collect: Callable[[], set[object]]) -> Callable[[], set[object]]:
    """Look up the composite ops of the dispatcher once a call, and not again for each namespace."""
    utils = sys.modules["torch._export.utils"]

    def collected() -> set[object]:
        utils._materialize_cpp_cia_ops()
        with patch.object(utils, "_materialize_cpp_cia_ops", lambda: None):
            return collect()

    return collected


class _Contexts(threading.local):
    """The MLIR context of each thread, which JAX makes anew for each program: it loads all of its dialects."""

    most = 64
    """So many programs have one context, in which the constants of all of them stay."""

    def __init__(self) -> None:
        self.made: object = None
        self.used = 0

    def replace(self, make: Callable[[], object]) -> Callable[[], object]:
        def kept() -> object:
            if self.used % self.most == 0:
                self.made = make()
            self.used += 1
            return self.made

        return kept


_SETTINGS = ("_get_dynamo_config", "_compiler_config", "_scrubbed_inductor_config", "_functorch_config")
_REPLACED: dict[tuple[str, str], Callable[..., object]] = {
    # The measurement of guards, for which Dynamo empties the processor's caches: its log says 0.
    ("torch._dynamo.guards", "profile_guard_manager"): lambda _: lambda *_: 0.0,
    # The name of the function that a line is in, for which a log has each file read by its tokens.
    ("torch._dynamo.symbolic_convert", "get_funcname"): lambda _: lambda *_: None,
    # The text of all settings of a compiler, which is for PyTorch's own metrics: it is absent.
    **{("torch._dynamo.utils", f"{name}_for_logging"): lambda _: lambda: None for name in _SETTINGS},
    ("torch.export.decomp_utils", "_collect_all_valid_cia_ops"): _listed_once,
    ("torch.export.exported_program", "_collect_all_valid_cia_ops"): _listed_once,
    ("jax._src.interpreters.mlir", "make_ir_context"): _Contexts().replace,
    # A decorator's annotation, made anew for each op of a table of decompositions; that of typing is kept.
    ("torch._ops", "Callable"): lambda _: typing.Callable,
}


@contextmanager
def without_overhead() -> Iterator[None]:
    """Leave out what compiling does for logs alone, and what it does again and again, while entered."""
    with ExitStack() as stack:
        for (module, name), made in _REPLACED.items():
            owner = sys.modules.get(module)
            if (found := getattr(owner, name, None)) is not None:
                stack.enter_context(patch.object(owner, name, made(found)))
        yield
