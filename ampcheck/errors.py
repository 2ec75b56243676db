"""The error that stands for bad input."""


class UsageError(Exception):
    """What the user gave cannot be used. Its text is one sentence that says why; the command line exits with 2."""
