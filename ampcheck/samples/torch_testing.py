"""Imports `torch.testing._internal` without what importing it changes in a process."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType
from unittest.mock import patch

import torch

from ampcheck.errors import UsageError
from ampcheck.samples.torch_private import TESTING, ScriptFunction, ScriptMethod


@cache
def internal(name: str) -> ModuleType:
    """Import `torch.testing._internal.<name>` without what importing it does to the rest of the process.

    Imported plainly it forbids setting `torch.backends` flags, wraps calls of scripted functions, and loads a
    hypothesis profile. Raises UsageError where a package it needs is not installed.
    """
    scripted = (ScriptFunction, ScriptMethod)
    calls = [kind.__call__ for kind in scripted]
    try:
        with (
            warnings.catch_warnings(),
            patch.object(torch.backends, "disable_global_flags", lambda: None),
            _absent("hypothesis"),  # PyTorch's test library goes on without it
        ):
            warnings.simplefilter("ignore")
            return import_module(f"{TESTING}.{name}")
    except ImportError as error:
        raise UsageError(f"{TESTING}.{name} cannot be imported: {error}") from error
    finally:
        for kind, call in zip(scripted, calls, strict=True):
            kind.__call__ = call  # type: ignore[method-assign]  # as it was before the import


@contextmanager
def _absent(package: str) -> Iterator[None]:
    """Let imports of a package fail."""
    before = sys.modules.get(package)
    sys.modules[package] = None  # type: ignore[assignment]  # Python's own way to refuse an import
    try:
        yield
    finally:
        del sys.modules[package]
        if before is not None:
            sys.modules[package] = before
