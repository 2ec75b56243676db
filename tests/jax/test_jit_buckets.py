"""Buckets of `jit`: what they pad, how many programs there are, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ampcheck.jax_device import Bucket, jit
from ampcheck.jax_device.jit.transform import Buckets

SIZES = Bucket((4, 8))


def labels(count: int) -> torch.Tensor:
    return torch.arange(count, device="jax") % 3


def trained(buckets: Buckets | None) -> tuple[list[float], torch.Tensor, Any]:
    """Losses of one step for each of four lengths, the weight afterwards, and the step."""
    torch.manual_seed(0)
    model = torch.nn.Embedding(3, 3).to("jax")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @jit(buckets=buckets)
    def step(tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(tokens), wanted, ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [step(labels(n), wanted=labels(n)).item() for n in (2, 3, 4, 7)]
    return losses, model.weight.detach().cpu(), step


def test_a_step_written_for_padding_trains_as_without_and_has_a_program_a_bucket() -> None:
    losses, weight, step = trained({"tokens": SIZES, "wanted": Bucket((8, 4), value=-100)})
    plain, expected, other = trained(None)
    assert losses == pytest.approx(plain, abs=1e-6)
    torch.testing.assert_close(weight, expected)
    assert (step.compiles, other.compiles) == (2, 4)
    assert "tensor<4xi64>" in step.lower(labels(3), labels(3)).as_text()


def test_several_dimensions_dictionaries_and_tensors_of_the_cpu() -> None:
    buckets: Buckets = {"batch.x": [SIZES, Bucket((2, 6), -1, float("inf"))], "rest.y": Bucket((3,), value=1)}

    @jit(buckets=buckets)
    def parts(batch: dict[str, Any], y: torch.Tensor | None = None, **more: Any) -> Any:
        return batch["x"] + batch["by"], more["rest"]["y"] * 2

    given = {"x": torch.zeros(3, 5), "by": 1}
    x, y = parts(given, rest={"y": torch.zeros(2, dtype=torch.bool)})
    assert x.device.type == y.device.type == "jax"
    assert x.tolist() == [[1.0] * 5 + [float("inf")]] * 4
    assert y.tolist() == [0, 0, 2]
    assert given["x"].shape == (3, 5)  # the caller's own


def test_what_has_a_bucket_s_size_is_the_argument_itself_and_none_stays() -> None:
    @jit(buckets={"x": SIZES, "mask": SIZES})
    def add(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x.add_(1) if mask is None else x

    x = torch.zeros(4, device="jax")
    assert add(x) is x
    assert x.tolist() == [1.0] * 4
    assert add(torch.zeros(1, device="jax"), torch.zeros(5)).shape == (4,)


def test_a_write_to_a_padded_copy_is_an_error() -> None:
    fill = jit(lambda x: x.zero_(), buckets={"x": SIZES})
    with pytest.raises(RuntimeError, match="the step wrote x, of which it has a padded copy"):
        fill(torch.ones(3, device="jax"))


def test_inference_mode() -> None:
    double = jit(lambda x: x * 2, buckets={"x": SIZES})
    with torch.inference_mode():
        assert [double(torch.ones(n, device="jax")).tolist() for n in (3, 4)] == [[2, 2, 2, 0], [2] * 4]
    assert double.compiles == 1


def test_a_step_that_runs_eagerly_gets_padded_arguments_too() -> None:
    value = jit(lambda x: float(x.sum()) + len(x), buckets={"x": SIZES})
    with pytest.warns(UserWarning, match="runs .* eagerly"):
        assert value(torch.ones(3, device="jax")) == 7


def called(name: str, argument: Any) -> Any:
    return lambda: jit(lambda x: x, buckets={name: SIZES})(argument)


@pytest.mark.parametrize(
    ("made", "kind", "says"),
    [
        (lambda: Bucket(()), ValueError, r"positive integers, at least one; got \[\]"),
        (lambda: Bucket((0, 4)), ValueError, r"positive integers, at least one; got \[0, 4\]"),
        (lambda: jit(lambda x: x, buckets={"y": SIZES}), ValueError, "buckets name 'y'; the parameters are x"),
        (lambda: jit(lambda x: x, buckets={"x": ()}), TypeError, r"buckets of 'x' are no Bucket: \(\)"),
        (lambda: jit(lambda x: x, buckets={"x": (4, 8)}), TypeError, r"buckets of 'x' are no Bucket: \(4, 8\)"),
        (called("x", torch.zeros(9)), ValueError, "dimension 0 of x has size 9, its largest bucket 8"),
        (called("x", torch.zeros(())), ValueError, r"pad dimension 0 of x, which has shape \[\]"),
        (called("x", torch.zeros(2, requires_grad=True)), ValueError, "pad x, which requires grad"),
        (called("x", [1, 2]), TypeError, "pad x, which is no tensor but a list"),
        (called("x.a", torch.zeros(2)), TypeError, "x is no dictionary with that key"),
        (called("x.a", {"b": torch.zeros(2)}), TypeError, "x is no dictionary with that key"),
    ],
    ids=["no size", "size 0", "name", "none", "numbers", "larger", "shape", "grad", "list", "no dictionary", "key"],
)
def test_what_are_no_buckets_or_cannot_be_padded_is_an_error(made: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        made()
