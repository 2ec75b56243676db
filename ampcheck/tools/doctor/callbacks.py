"""The doctor as a callback of libraries that own the training loop. Each library is imported when it is asked for."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ampcheck.errors import UsageError
from ampcheck.tools.doctor.session import Doctor, doctor


class _Visit:
    """A doctor that is there from the begin of a training to its end."""

    def __init__(self, steps: int, tell: Callable[[str], object]) -> None:
        self._steps, self._tell = steps, tell
        self._doctor: Doctor | None = None

    def begin(self, *_: object, **__: object) -> None:
        self._doctor = doctor().__enter__()

    def enough(self) -> bool:
        return self._doctor is not None and 0 < self._steps <= self._doctor.steps

    def end(self, *_: object, **__: object) -> None:
        if self._doctor is not None:
            self._doctor.close()
            self._tell(self._doctor.screen())
            self._doctor = None


def trainer_callback(*, steps: int = 0, tell: Callable[[str], object] = print) -> Any:
    """Return a callback for the `Trainer` of transformers, which tells the doctor's screen when training ends.

    Args:
        steps: stop the training after so many optimizer steps; 0 for none.
        tell: is given the screen.

    Raises UsageError where transformers is not installed.
    """
    visit = _Visit(steps, tell)

    def each_step(_: object, args: object, state: object, control: Any, **__: object) -> None:
        control.should_training_stop = control.should_training_stop or visit.enough()

    methods = {"on_train_begin": visit.begin, "on_step_end": each_step, "on_train_end": visit.end}
    return _instance("transformers", "TrainerCallback", methods)


def lightning_callback(*, steps: int = 0, tell: Callable[[str], object] = print) -> Any:
    """Return a callback for the `Trainer` of Lightning, which tells the doctor's screen when fitting ends.

    See `trainer_callback` for the arguments. Raises UsageError where Lightning is not installed.
    """
    visit = _Visit(steps, tell)

    def each_batch(_: object, trainer: Any, *__: object) -> None:
        trainer.should_stop = trainer.should_stop or visit.enough()

    methods = {"on_train_start": visit.begin, "on_train_batch_end": each_batch}
    methods |= {"on_train_end": visit.end, "on_exception": visit.end}
    return _instance("lightning.pytorch", "Callback", methods)


def _instance(module: str, base: str, methods: dict[str, Callable[..., None]]) -> Any:
    """Return an instance of a class of a library with some methods."""
    try:
        kind = getattr(import_module(module), base)
    except ImportError as error:
        raise UsageError(f"{module.partition('.')[0]} is not installed, so it has no callback") from error
    return type("DoctorCallback", (kind,), methods)()
