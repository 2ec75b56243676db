"""The exceptions: bad input, a failed check, an op that fails without autocast too, a device that lacks something."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class UsageError(Exception):
    """What the user gave cannot be used. Its text is one sentence that says why; the command line exits with 2."""


_FEW, _MANY, _LONGEST = 12, 60, 60
"""How many names a sentence lists always, and where none is close; the characters of an unknown one that it repeats."""


def unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    """Return the error about a name that is not known, with the names that are close, or all of them."""
    names = list(known)
    asked = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"
    close = get_close_matches(name, names, 4) if len(name) <= _LONGEST else []
    if len(names) <= (_MANY if not close else _FEW):
        hint = f"; there are {', '.join(names)}"
    else:
        hint = f"; did you mean {', '.join(close)}?" if close else ""
    return UsageError(f"there is no {what} named {asked!r}{hint}")


class HarnessError(Exception):
    """Ampcheck itself made a mistake or cannot go on; neither the device nor PyTorch is to blame. Its text says why."""


class Difference(str):
    """A sentence about an exception, which it carries, so that the failure has its traceback and its cause.

    A check that turns an exception into a sentence returns `Difference(sentence, error)`.
    """

    error: BaseException | None

    def __new__(cls, text: str, error: BaseException | None = None) -> "Difference":
        made = super().__new__(cls, text)
        made.error = error
        return made


def error_of(difference: str) -> BaseException | None:
    """Return the exception that a sentence speaks of; None for a sentence about none."""
    return getattr(difference, "error", None)


class CheckFailure(AssertionError):
    """The device does not do what PyTorch promises; carries each difference as a sentence.

    `error`: the exception that the sentences speak of, by default that of the first `Difference` among them. It is the
    failure's `__cause__`, too. The traceback and the cause of the case are taken from it, so pass it on wherever an
    exception was caught: by `Difference(sentence, error)` in a list of differences, or by `CheckFailure([...], error)`.
    """

    def __init__(self, differences: Sequence[str], error: BaseException | None = None) -> None:
        super().__init__("\n".join(differences))
        self.differences = list(differences)
        self.error = error or next(filter(None, map(error_of, differences)), None)
        self.__cause__ = self.error


class Broken(CheckFailure):
    """The op raises or is wrong without autocast, too; carries each difference as a sentence."""


class Unsupported(Exception):
    """The device declares that it lacks what it was asked, or PyTorch's dispatcher has no kernel; its text says so."""


MOST = 2000
"""The most characters that `one_line` keeps of an exception's message."""


def one_line(error: BaseException | None) -> str:
    """Return an exception with its whole message as one line; of a very long message the beginning and the end."""
    text = " ".join(str(error).split())
    if len(text) > MOST:
        text = f"{text[: MOST * 3 // 4]} … {text[-MOST // 4 :]}"
    return f"{type(error).__name__}: {text}" if error else "nothing"
