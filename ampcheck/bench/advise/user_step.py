"""Find and check a user's step, and make it ready in a variant.

A function returns `(model, inputs, loss)`, e.g. a `StepSpec`; `docs/using.md` has examples.
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
from torch import nn

from ampcheck.bench.core.model import Precision
from ampcheck.bench.core.prepare import Prepared, region_of, training
from ampcheck.devices.registry import told
from ampcheck.errors import UsageError
from ampcheck.spec.torch_dtypes import name_of
from ampcheck.tools import user_program
from ampcheck.tools.user_program import a_type

_MARK = "__ampcheck_step__"
_MODULE = "__ampcheck_step_file__"
_WANTED = "a tuple (model, inputs, loss) is wanted, with None as the loss for inference"
_RATE = 1e-6
"""Of the update: small enough that thousands of steps between two restores stay where the first one was."""
_SETTLING = 30
"""Steps after which a GradScaler that still skips updates is left at that: it has halved its scale as often."""

Make = TypeVar("Make", bound=Callable[[], object])


class StepSpec(NamedTuple):
    """A step to time.

    `model`: in float32, on any device. `inputs`: a tuple of tensors, given to the model. `loss`: from the model's
    output to a scalar, or None for inference; one that takes two arguments gets the last of `inputs` as the second, and
    the model gets the others.
    """

    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    loss: Callable[..., torch.Tensor] | None = None


def step(make: Make) -> Make:
    """Mark the function of a script that makes its step, for `ampcheck bench advise SCRIPT.py`; it stays what it is."""
    setattr(make, _MARK, True)
    return make


def load(target: str) -> StepSpec:
    """Return the step that `MODULE:FUNCTION`, `FILE.py:FUNCTION` or `FILE.py` names; `FILE.py` is run for it.

    Raises UsageError where there is none, its function raises, or it does not return a step.
    """
    head, colon, name = ("", "", target) if target.endswith(".py") else target.rpartition(":")
    if target.endswith(".py"):
        module, head = _file(Path(target)), target
        name = _marked(module, target)
    elif colon and head and name:
        module = _file(Path(head)) if head.endswith(".py") else user_program.imported(head)
    else:
        raise UsageError(f"{target!r} names no function; it is written MODULE:FUNCTION, FILE.py:FUNCTION or FILE.py")
    function, where = user_program.function_of(module, head, name), f"{name} of {head}"
    torch.manual_seed(0)
    try:
        made = function()
    except (Exception, SystemExit) as error:  # it is the user's, and may raise anything
        raise UsageError(f"{where} raised {told(error)}") from error
    return checked(made, where)


def checked(made: object, where: str) -> StepSpec:
    """Return a function's result as a step. Raises UsageError where it is not one, naming `where` it came from."""

    def refuse(what: str) -> NoReturn:
        raise UsageError(f"{where} returned {what}")

    if not isinstance(made, tuple):
        refuse(f"{a_type(made)}; {_WANTED}")
    if len(made) != 3:
        refuse(f"a tuple of {len(made)}; {_WANTED}")
    model, inputs, loss = made
    if not isinstance(model, nn.Module):
        refuse(f"{a_type(model)} as the model; a torch.nn.Module is wanted")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point() and tensor.dtype is not torch.float32:
            wanted = "it is wanted in fp32, and each variant converts it as it needs"
            refuse(f"a model whose {name} is {name_of(tensor.dtype)}; {wanted}")
    if not isinstance(inputs, (tuple, list)):
        refuse(f"{a_type(inputs)} as the inputs; a tuple of tensors is wanted")
    if wrong := [one for one in inputs if not isinstance(one, torch.Tensor)]:
        refuse(f"{a_type(wrong[0])} among the inputs; a tuple of tensors is wanted")
    if loss is not None and not callable(loss):
        refuse(f"{a_type(loss)} as the loss; a callable or None is wanted")
    if loss is not None and not any(parameter.requires_grad for parameter in model.parameters()):
        refuse("a loss, but no parameter of the model requires grad; give None as the loss")
    if loss is not None and _takes(loss) == 2 and not inputs:
        refuse("a loss of two arguments, but no input to give it as the second")
    return StepSpec(model, tuple(inputs), loss)


class UserStep(Prepared):
    """A step in a variant on a device: forward, loss, backward and an update by SGD; forward alone without a loss.

    `scaled`: whether with a GradScaler; by default float16's region has one. `scaler` is it. The step's model is
    copied, so that the user's stays as it is.
    """

    def __init__(
        self, spec: StepSpec, precision: Precision, device: str, compiler: str = "eager", scaled: bool | None = None
    ) -> None:
        low, loss, region = precision.convert, spec.loss, region_of(device, precision)
        model = deepcopy(spec.model).to(device, low)
        given = [x.detach().to(device, low if x.is_floating_point() else None) for x in spec.inputs]
        if scaled is None:
            scaled = precision.region is torch.float16 and loss is not None
        self.scaler = torch.amp.GradScaler(device, enabled=scaled)

        def inference(forward: Callable[..., Any]) -> Callable[..., Any]:
            def run(*inputs: torch.Tensor) -> Any:
                with torch.no_grad(), region():
                    return forward(*inputs)

            return run

        stepping: Callable[..., Any] = inference
        if loss is not None:
            stepping = training(model, _RATE, self.scaler, region, loss, len(given) - (_takes(loss) == 2))
        trains = loss is not None
        super().__init__(device, precision, compiler, given, model, stepping=stepping, model=model, gradients=trains)

    def settle(self) -> int:
        """Step until the GradScaler's scale is one at which no update is skipped. Returns how many were."""
        skipped = 0
        while self.scaler.is_enabled() and skipped < _SETTLING:
            before = self.scaler.get_scale()
            self.call()
            if self.scaler.get_scale() >= before:
                break
            skipped += 1
        self.restore()
        return skipped

    def try_out(self) -> None:
        """Run it once. Raises UsageError where it raises, e.g. for a loss that is not a scalar with a gradient."""
        try:
            self.eager()
        except Exception as error:  # the user's model and loss may raise anything
            raise UsageError(f"the step cannot be run in float32 on {self._device}: {told(error)}") from error
        self.restore()


def _takes(loss: Callable[..., Any]) -> int:
    """Return the number of arguments that a loss takes: 2 for one that wants a target, else 1."""
    try:
        parameters = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters.values()
    except (TypeError, ValueError):  # a builtin that tells nothing of its arguments
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return 2 if sum(p.kind in kinds and p.default is p.empty for p in parameters) >= 2 else 1


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}; give a script or a module")
    sys.path.insert(0, str(path.absolute().parent))
    found = importlib.util.spec_from_file_location(_MODULE, path)
    assert found is not None and found.loader is not None  # noqa: PT018  # a name that ends in .py has a loader
    module = importlib.util.module_from_spec(found)
    sys.modules[_MODULE] = module  # classes of the script are looked up there, e.g. by dataclasses
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script can raise anything
        raise UsageError(f"{path} cannot be loaded: {told(error)}") from error
    return module


def _marked(module: ModuleType, target: str) -> str:
    """Return the name of the only marked function of a module."""
    found: dict[int, str] = {}
    for name, value in vars(module).items():
        if getattr(value, _MARK, False) is True:
            found.setdefault(id(value), name)
    names = ", ".join(found.values())
    if not found:
        raise UsageError(f"{target} marks no function with @ampcheck.step; mark one, or name it as {target}:FUNCTION")
    if len(found) > 1:
        raise UsageError(
            f"{target} marks several functions with @ampcheck.step: {names}; name one as {target}:FUNCTION"
        )
    return names
