"""The parameters and optimizers of a program on a device, made twice: for the scaler, and for plain torch beside it."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan
from typing import Any

import torch

from ampcheck.programs.scaler.steps import OPTIMIZERS, Bad, Optimizer, Param
from ampcheck.spec.torch_dtypes import DTYPES

VALUES = {"inf": inf, "-inf": -inf, "nan": nan}


def constructor(kind: str) -> str:
    """Return the expression that makes an optimizer of a kind, with `groups` for its groups."""
    return OPTIMIZERS[kind].format("groups")


def factor(param: int, device: str | torch.device, dtype: torch.dtype, bad: Bad | None = None) -> torch.Tensor:
    """Return a parameter's factor in the loss, which is its gradient before scaling."""
    values = [0.5 + 0.25 * param, -1.5]
    if bad is not None and bad.where == "forward" and bad.param == param:
        values[0] = VALUES[bad.value]
    return torch.tensor(values, dtype=dtype, device=device)


class Side:
    """The parameters and optimizers of a program, each time with the same values."""

    def __init__(self, plans: tuple[Optimizer, ...], home: str) -> None:
        self.plans = plans
        self.home = home
        self.params = [[self._made(number, param) for number, param in enumerate(plan.params)] for plan in plans]
        self.optimizers = [
            eval(constructor(plan.kind), {"torch": torch, "groups": self._groups(plan, params)})
            for plan, params in zip(plans, self.params, strict=True)
        ]

    def _made(self, number: int, param: Param) -> torch.nn.Parameter:
        shape = (3, 2) if param.kind == "sparse" else (2,)
        values = torch.full(shape, 1.0 + number, dtype=DTYPES[param.dtype], device=self.device(param))
        return torch.nn.Parameter(values, requires_grad=param.kind != "frozen")

    def device(self, param: Param) -> str:
        """The device type a parameter lies on."""
        return self.home if param.place == "home" else "cpu"

    @staticmethod
    def _groups(plan: Optimizer, params: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
        left = iter(params)
        return [{"params": [next(left) for _ in group]} for group in plan.groups]

    def losses(self, optimizer: int, bad: Bad | None = None) -> list[torch.Tensor]:
        """The loss of an optimizer's parameters on each device where one of them is used."""
        plan, found = self.plans[optimizer], dict[str, torch.Tensor]()
        for number, (param, tensor) in enumerate(zip(plan.params, self.params[optimizer], strict=True)):
            if param.kind in ("used", "sparse"):
                device = self.device(param)
                by = factor(number, device, tensor.dtype, bad)
                if param.kind == "sparse":
                    rows = torch.nn.functional.embedding(torch.tensor([2, 0, 2], device=device), tensor, sparse=True)
                    term = (rows * by).sum()
                else:
                    term = (tensor * by).sum()
                found[device] = found[device] + term if device in found else term
        if bad is not None and bad.where == "loss":
            device = self.device(plan.params[bad.param])
            if device in found:
                found[device] = found[device] * VALUES[bad.value]
        return list(found.values())

    def corrupt_grad(self, optimizer: int, param: int, value: str) -> None:
        """Write a value into the first element of a gradient, where there is one."""
        grad = self.params[optimizer][param].grad
        if grad is not None:
            (grad._values() if grad.is_sparse else grad).view(-1)[0] = VALUES[value]

    def clip(self, optimizer: int) -> None:
        """Clip the norm of an optimizer's gradients that are not sparse."""
        dense = [p for p in self.params[optimizer] if p.grad is not None and not p.grad.is_sparse]
        torch.nn.utils.clip_grad_norm_(dense, 1.0)

    def gradients(self, optimizer: int) -> Iterator[tuple[int, torch.Tensor]]:
        """The gradients there are, with the parameter's number; of sparse ones the values."""
        for number, tensor in enumerate(self.params[optimizer]):
            if tensor.grad is not None:
                yield number, tensor.grad._values() if tensor.grad.is_sparse else tensor.grad

    def finite(self, optimizer: int) -> dict[str, bool]:
        """For each device with gradients of an optimizer, whether all of them are finite."""
        found: dict[str, bool] = {}
        for _, grad in self.gradients(optimizer):
            device = grad.device.type
            found[device] = found.get(device, True) and bool(grad.cpu().isfinite().all())
        return found

    def half(self, optimizer: int) -> bool:
        """Return whether an optimizer has a float16 gradient."""
        return any(grad.dtype == torch.float16 for _, grad in self.gradients(optimizer))

    def multiply(self, optimizer: int, by: float) -> None:
        """Multiply an optimizer's gradients by a float32 number in at least float32, without the scaler."""
        if by != 1.0:
            for _, grad in self.gradients(optimizer):
                wide = grad if grad.dtype == torch.float64 else grad.float()
                grad.copy_(wide * torch.full((), by, dtype=torch.float32, device=grad.device))

    def held(self, optimizer: int) -> dict[str, torch.Tensor]:
        """A copy on the CPU of every parameter of an optimizer and of every tensor of its state, by name."""
        out = {f"parameter {number}": tensor for number, tensor in enumerate(self.params[optimizer])}
        for number, entries in self.optimizers[optimizer].state_dict()["state"].items():
            out.update({f"{key} of parameter {number}": value for key, value in entries.items() if value is not None})
        return {name: torch.as_tensor(value).detach().cpu().clone() for name, value in out.items()}


def same(got: torch.Tensor, want: torch.Tensor, tolerance: float = 0.0) -> bool:
    """Return whether two tensors on the CPU agree in shape, dtype and values; nan equals nan.

    `tolerance`: how far they may be apart, relative to 1 + |want|.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    return torch.allclose(got.double(), want.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
