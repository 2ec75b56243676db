"""What a kind of case is: a class that runs its cases, writes them as plain torch and describes them."""

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from ampcheck.devices.base import Device
from ampcheck.errors import Difference
from ampcheck.spec.case import Case


class Check(ABC):
    """One kind of case. `ampcheck.checks.kinds.check_of` finds the kind of a case."""

    @abstractmethod
    def takes(self, case: Case) -> bool:
        """Return whether a case is of this kind."""

    @abstractmethod
    def run(self, case: Case, device: Device) -> list[str]:
        """Run a case on a device and return every difference from the specification.

        Raises:
            Unsupported: autocast did its part, and the dispatcher has no kernel for the op, or the device declares that
                it has none for these dtypes.
            Broken: the op raises or is wrong on this device without autocast, too.
        """

    @abstractmethod
    def program(
        self, case: Case, device: Device, message: str = "", modules: Sequence[str] = (), *, ran: bool = True
    ) -> str:
        """Write a case as a program that needs torch and the device alone.

        It makes the comparison that found a difference once more, and prints `FAIL` with each difference in the words
        of the check, or `ok` with what it compared.

        Args:
            message: the differences that were found, a line each. "": everything is compared.
            modules: what `--device-module` named.
            ran: False for a case that ended its process: nothing of it is run here, nor compared with a reference.
        """

    @abstractmethod
    def describe(self, case: Case) -> str:
        """Return what is checked of a case, in a sentence."""


class OpCheck(Check):
    """A kind of case about an op, whose program begins with a comment that describes the case."""

    def program(
        self, case: Case, device: Device, message: str = "", modules: Sequence[str] = (), *, ran: bool = True
    ) -> str:
        comment = textwrap.fill(self.describe(case), 118, initial_indent="# ", subsequent_indent="# ")
        return f"{comment}\n{self.write(case, device, message, modules, ran=ran)}"

    @abstractmethod
    def write(self, case: Case, device: Device, message: str, modules: Sequence[str], *, ran: bool) -> str:
        """Write the program without its comment; see `program`."""


def carrying(error: BaseException | None, differences: Iterable[str]) -> list[str]:
    """Return differences that carry the exception that they are about, for the traceback and the cause of the case."""
    return [Difference(text, error) for text in differences]
