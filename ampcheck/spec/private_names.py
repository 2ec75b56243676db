"""Names of torch that torch does not promise: where a package takes them, and one error for all that are missing.

Each package that needs such names has a file `torch_private.py`, which takes every one of them once, under a name
without an underscore. `tables/private_names.csv` says what each is needed for and how it is looked up:

- take: now, when the package is imported.
- call, module, package: when it is used, as its module takes long to import or tests replace it in torch.
- attribute: nowhere; the code uses it as `object._name`.
- optional: likewise, and a torch without it will do.
"""

import csv
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import torch

from ampcheck.errors import UsageError
from ampcheck.spec.policies import TABLES, covered, versions


class MissingPrivateNames(UsageError, ImportError):
    """The installed torch lacks private names that a package of ampcheck needs."""


class PrivateName(NamedTuple):
    """A row of the table. `package`: the folder of ampcheck that uses it."""

    package: str
    how: str
    path: str
    need: str


@cache
def table() -> tuple[PrivateName, ...]:
    """Return every private name of torch that ampcheck uses."""
    with (TABLES / "private_names.csv").open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return tuple(PrivateName(*row) for row in rows)


class PrivateNames:
    """The private names of torch that one package uses.

    Args:
        package: the package, for the message.
        without: a sentence that says what does not work where names are missing.
        names: rows of a table, of which those of the package count.
    """

    def __init__(self, package: str, *, without: str, names: Iterable[PrivateName] | None = None) -> None:
        self._package, self._without = package, without
        folder = package.rpartition(".")[2]
        self._names = [name for name in (table() if names is None else names) if name.package == folder]
        self._said = {name.path: f"{name.path} ({name.need})" for name in self._names}
        self._missing: list[str] = []

    def take(self, path: str) -> Any:
        """Read a name now. A missing one is reported by `check`."""
        try:
            return _found(path)
        except (AttributeError, ImportError):
            self._missing.append(self._said[path])
            return _Absent(self._error([self._said[path]]))

    def call(self, path: str) -> Callable[..., Any]:
        """Return a function that looks the name up at each call.

        For a function that tests replace in torch, and for one of a module that `import torch` does not load.
        """
        owner = path.rpartition(".")[0]
        if owner in sys.modules:
            self.take(path)
        elif find_spec(".".join(owner.split(".")[:2])) is None:
            self._missing.append(self._said[path])
        return lambda *args, **kwargs: self._imported(path)(*args, **kwargs)

    def package(self, path: str) -> str:
        """Return a package's path, whose modules are imported when they are asked for."""
        if find_spec(path) is None:
            self._missing.append(self._said[path])
        return path

    def module(self, path: str) -> Callable[[], Any]:
        """Return a function that imports a module which `import torch` does not load."""
        return partial(self._imported, path)

    def check(self, of: Mapping[str, Any] | None = None) -> None:
        """Look for the attributes, and report all names that are missing; the last line of a `torch_private.py`.

        `of`: by the path of a class an object of it, where the class itself lacks the attributes.

        Raises MissingPrivateNames on a torch that has a policy table: each of those was seen to have all names. On
        another one it warns: each missing name raises when it is used, and what does not need it works.
        """
        missing = [*self._missing]
        for name in self._names:
            kind, _, attribute = name.path.rpartition(".")
            if name.how == "attribute":
                try:
                    getattr(of[kind] if of and kind in of else _found(kind), attribute)
                except (AttributeError, ImportError):
                    missing.append(self._said[name.path])
        if not missing:
            return
        error = self._error(missing)
        if covered(torch.__version__):
            raise error
        warnings.warn(str(error), stacklevel=2)

    def _imported(self, path: str) -> Any:
        try:
            return _found(path)
        except (AttributeError, ImportError) as error:
            raise self._error([self._said[path]]) from error

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
