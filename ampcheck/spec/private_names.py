"""Names of torch that torch does not promise: where a package takes them, and one error for all that are missing.

Each package that needs such names has a file `torch_private.py`, which takes every one of them once, under a name
without an underscore; docs/private_api.md is made of these files.
"""

import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn

import torch

from ampcheck.errors import UsageError
from ampcheck.spec.drift import covered
from ampcheck.spec.policies import versions


class MissingPrivateNames(UsageError, ImportError):
    """The installed torch lacks private names that a package of ampcheck needs."""


class PrivateNames:
    """The private names of torch that one package uses.

    Args:
        package: the package, for the message.
        without: a sentence that says what does not work where names are missing.
    """

    def __init__(self, package: str, *, without: str) -> None:
        self._package, self._without = package, without
        self._missing: list[str] = []

    def take(self, path: str, need: str) -> Any:
        """Read a name now; `need` says what it is needed for. A missing one is reported by `check`."""
        try:
            return _found(path)
        except (AttributeError, ImportError):
            self._missing.append(f"{path} ({need})")
            return _Absent(self._error([f"{path} ({need})"]))

    def call(self, path: str, need: str) -> Callable[..., Any]:
        """Return a function that looks the name up at each call.

        For a function that tests replace in torch, and for one of a module that `import torch` does not load.
        """
        owner = path.rpartition(".")[0]
        if owner in sys.modules:
            self.take(path, need)
        elif find_spec(".".join(owner.split(".")[:2])) is None:
            self._missing.append(f"{path} ({need})")
        return lambda *args, **kwargs: self._imported(path, need)(*args, **kwargs)

    def package(self, path: str, need: str) -> str:
        """Return a package's path, whose modules are imported when they are asked for."""
        if find_spec(path) is None:
            self._missing.append(f"{path} ({need})")
        return path

    def module(self, path: str, need: str) -> Callable[[], Any]:
        """Return a function that imports a module which `import torch` does not load."""
        return partial(self._imported, path, need)

    def attributes(self, kind: str, *names: str, need: str, of: Any = None) -> None:
        """Look for private attributes of torch's objects, which the code then uses as `object._name`.

        `kind`: the path of their class. `of`: an object of it, where the class itself does not have them.
        """
        for name in names:
            try:
                getattr(_found(kind) if of is None else of, name)
            except (AttributeError, ImportError):
                self._missing.append(f"{kind}.{name} ({need})")

    def optional(self, kind: str, *names: str, need: str) -> None:
        """Name private attributes that are used only where torch has them; nothing is looked for here."""

    def check(self) -> None:
        """Report all names that are missing, in one sentence; the last line of a `torch_private.py`.

        Raises MissingPrivateNames on a torch that has a policy table: each of those was seen to have all names. On
        another one it warns: each missing name raises when it is used, and what does not need it works.
        """
        if not self._missing:
            return
        error = self._error(self._missing)
        if covered(torch.__version__):
            raise error
        warnings.warn(str(error), stacklevel=2)

    def _imported(self, path: str, need: str) -> Any:
        try:
            return _found(path)
        except (AttributeError, ImportError) as error:
            raise self._error([f"{path} ({need})"]) from error

    def _error(self, missing: list[str]) -> MissingPrivateNames:
        return MissingPrivateNames(
            f"torch {torch.__version__} lacks private names that {self._package} uses: {', '.join(missing)}; "
            f"{self._without}. torch {versions()[0]} to {versions()[-1]} have them"
        )


class _Absent:
    """Replace a name that torch lacks: raise the error where it is called or asked for an attribute."""

    def __init__(self, error: MissingPrivateNames) -> None:
        self._error = error

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise self._error

    def __getattr__(self, name: str) -> NoReturn:
        raise self._error


def _found(path: str) -> Any:
    """Return the object of a dotted path; modules on the way are imported."""
    first, *rest = path.split(".")
    found: Any = import_module(first)
    for place, name in enumerate(rest, 1):
        try:
            found = getattr(found, name)
        except AttributeError:
            if not isinstance(found, ModuleType):
                raise
            found = import_module(".".join(path.split(".")[: place + 1]))
    return found
