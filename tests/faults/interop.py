"""JAX functions that are made PyTorch ones wrongly, for the jax device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from tests.faults.fault import Fault


def _fault(name: str, scenario: str, says: str, owner: str, wrong: Callable[[Any], Any]) -> Fault:
    """A fault that a scenario must catch: `wrong` makes another attribute of the module, or a class of it."""

    @contextmanager
    def inject() -> Iterator[None]:
        from ampcheck.jax_device.interop import functions

        where, _, attribute = owner.rpartition(".")
        holder = getattr(functions, where) if where else functions
        with patch.object(holder, attribute, wrong(getattr(holder, attribute))):
            yield

    return Fault(f"j2t-{name}", "j2t", inject, (says,), "autograd", "jax", scenario)


def doubled(wrap: Any) -> Any:
    return lambda array: wrap(array * 2)


def next_place(wrap: Any) -> Any:
    """Whole numbers are one too large."""
    return lambda array: wrap(array if array.dtype.kind == "f" else array + 1)


def without_graph(gradient: Any) -> Any:
    """A gradient that has none in turn."""

    def made(*args: Any) -> Any:
        form = gradient(*args)
        return lambda tensors: [found.detach() for found in form(tensors)]

    return made


def with_respect_to_all(call: Any) -> Any:
    def called(self: Any, leaves: Any, tree: Any) -> Any:
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                leaf.requires_grad_()
        return call(self, leaves, tree)

    return called


def turned(call: Any) -> Any:
    """Tuples among the results come out the other way round."""

    def called(*args: Any) -> Any:
        out = call(*args)
        return {name: value[::-1] if isinstance(value, tuple) else value for name, value in out.items()}

    return called


def in_other_words(call: Any) -> Any:
    def called(*args: Any) -> Any:
        try:
            return call(*args)
        except KeyError as error:
            raise RuntimeError("the function failed") from error

    return called


class _ByStructure(dict[Any, Any]):
    """Programs kept by the structure of their arguments, whatever numbers and words are in it."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1], default)

    def __setitem__(self, key: Any, form: Any) -> None:
        super().__setitem__(key[1], form)


def kept_by_structure(init: Any) -> Any:
    def made(self: Any, fn: Any) -> None:
        init(self, fn)
        self.forms = _ByStructure()

    return made


def unconjugated(_: Any) -> Any:
    return list


def twice(conjugated: Any) -> Any:
    return lambda arrays: [array * 2 for array in conjugated(arrays)]


def casting_always(j2t: Any) -> Any:
    return lambda fn, cast_inputs=None: j2t(fn, cast_inputs=cast_inputs or torch.float16)


def casting_doubles(cast: Any) -> Any:
    return lambda leaf, dtype: leaf.to(dtype) if leaf.is_floating_point() else leaf


def lost(_: Any) -> Any:
    """No argument gets a gradient."""
    return staticmethod(lambda ctx, *grads: (None, None, *[None] * len(ctx.saved_tensors)))


JAX = (
    _fault("result-doubled", "forward_and_backward", "value: differs", "wrap", doubled),
    _fault("gradient-without-graph", "double_backward", "does not require grad", "_Form.gradient", without_graph),
    _fault(
        "gradient-for-all",
        "only_what_requires_grad",
        "gradient of a tensor that requires none: got",
        "_Border.__call__",
        with_respect_to_all,
    ),
    _fault("tuples-turned", "several_results", "a result in a tuple: got", "_Border.__call__", turned),
    _fault("place-off-by-one", "integer_results", "where the largest is: got", "wrap", next_place),
    _fault(
        "kept-by-structure",
        "arguments_of_other_kinds",
        "sum of 3.0 times the picked: differs",
        "_Border.__init__",
        kept_by_structure,
    ),
    _fault("not-conjugated", "complex_gradients", "gradient: differs", "_conjugated", unconjugated),
    _fault("always-cast", "as_given", "the dtypes the function received: got", "j2t_autograd", casting_always),
    _fault("doubles-cast", "cast_on_request", "the dtypes inside: got False", "_cast", casting_doubles),
    _fault("exception-changed", "an_exception", "raised RuntimeError", "_Border.__call__", in_other_words),
    _fault("gradient-doubled", "between_ops", "gradient of", "_conjugated", twice),
    _fault("cast-again", "computed_again", "the dtypes the function received: got", "j2t_autograd", casting_always),
    _fault("gradient-of-largest-lost", "integer_results", "there is a gradient of the largest", "_Call.backward", lost),
)
"""Every fault."""
