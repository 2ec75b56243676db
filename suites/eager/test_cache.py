"""Rule cache: a float32 leaf that requires grad is cast to the region's dtype once per outermost region.

The casts of weights are cached, so that a weight used by several ops is cast once. PyTorch documents only the switch,
`cache_enabled`; where a case names no source, it is the comments and the code of `aten/src/ATen/autocast_mode.cpp`
(`cached_cast`, `clear_cache`). The first part counts casts, the second checks that the cache changes no result. With
gradients: `suites/autograd/test_cache.py`.
"""

import weakref
from collections.abc import Callable
from threading import Thread

import pytest
import torch

from ampcheck.runner.suite import Amp, named, scenario
from ampcheck.spec.torch_dtypes import name_of

pytestmark = pytest.mark.rule("cache")


def _weight_and_use(amp: Amp) -> tuple[torch.Tensor, torch.Tensor, Callable[..., int]]:
    """Return a weight, another matrix, and a function that says how often the weight is cast in some products."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    return weight, x, lambda times=1: amp.casts(lambda: [torch.mm(x, weight) for _ in range(times)], weight)


@scenario()
def test_one_cast_for_many_uses(amp: Amp) -> None:
    """A float32 leaf that requires grad is cast once however many ops use it (autocast_mode.cpp, cached_cast)."""
    weight, x, batch = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4), amp.rand(2, 4, 4)
    parameter = torch.nn.Parameter(amp.rand(4, 4))
    with amp.region():
        uses = amp.casts(
            lambda: [torch.mm(x, weight), weight @ x, torch.baddbmm(batch, batch, batch), x @ weight], weight
        )
        amp.assert_equal("casts of a leaf used by three products", uses, 1)
        uses = amp.casts(lambda: [torch.mm(x, parameter) for _ in range(5)], parameter)
        amp.assert_equal("casts of a parameter used by five products", uses, 1)


@scenario()
def test_each_leaf_has_its_own(amp: Amp) -> None:
    """Two leaves are two casts (autocast_mode.cpp: the key is the source tensor)."""
    one, two = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4, requires_grad=True)
    with amp.region():
        casts = amp.observe(lambda: [torch.mm(one, two) for _ in range(3)], one, two).casts
        got = sorted(c.source for c in casts if c.source is not None)
        amp.assert_equal("which of two leaves were cast", got, [0, 1])


@scenario()
def test_not_for_tensors_without_grad(amp: Amp) -> None:
    """Only weights are cached: a tensor that requires no grad is cast at each use (autocast_mode.cpp, cached_cast)."""
    plain, x = amp.rand(4, 4), amp.rand(4, 4)
    with amp.region():
        amp.assert_equal("casts of a plain tensor", amp.casts(lambda: [torch.mm(x, plain) for _ in range(3)], plain), 3)


@scenario()
def test_not_for_low_leaves(amp: Amp) -> None:
    """Only float32 weights are cached: one in the other lower precision is cast at each use (autocast_mode.cpp)."""
    leaf, x = amp.rand(4, 4, dtype=amp.other, requires_grad=True), amp.rand(4, 4)
    with amp.region():
        got = amp.casts(lambda: [torch.mm(x, leaf) for _ in range(3)], leaf)
        amp.assert_equal(f"casts of a {amp.other} leaf", got, 3)


@scenario(values=True)
def test_not_for_views(amp: Amp) -> None:
    """A view is cast at each use, also one that is a leaf (autocast_mode.cpp: `!arg.is_view()`)."""
    base, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    with torch.no_grad():
        leaf = amp.rand(4, 4)[:]
    leaf.requires_grad_()
    for what, view in (("a view of a leaf", base.t()), ("a view that is a leaf", leaf)):
        with amp.region():
            got = len(amp.copies(lambda v=view: [torch.mm(x, v) for _ in range(3)], view))
            amp.assert_equal(f"casts of {what}", got, 3)


@scenario(values=True)
def test_not_for_results(amp: Amp) -> None:
    """A tensor that was computed is cast at each use (autocast_mode.cpp: `arg.is_leaf()`)."""
    computed, x = amp.rand(4, 4, requires_grad=True) * 2, amp.rand(4, 4)
    with amp.region():
        got = len(amp.copies(lambda: [torch.mm(x, computed) for _ in range(3)], computed))
        amp.assert_equal("casts of a result", got, 3)


@scenario()
def test_not_for_casts_to_float32(amp: Amp) -> None:
    """Only casts to the region's dtype are cached, not those to float32 (autocast_mode.cpp, cached_cast)."""
    leaf, wide = amp.rand(4, 4, dtype=amp.dtype, requires_grad=True), amp.rand(4, 4)
    loss = torch.nn.functional.mse_loss
    with amp.region():
        got = amp.casts(lambda: [loss(leaf, wide) for _ in range(3)], leaf)
        amp.assert_equal("casts of a low leaf by a loss", got, 3)
        widening = {"atan2": torch.atan2, "cat": lambda a, b: torch.cat([a, b])}
        for op in (call for name, call in widening.items() if amp.policies.get(name) == "promote"):
            found = amp.casts(lambda op=op: [op(leaf, wide) for _ in range(3)], leaf)
            amp.assert_equal("casts of a low leaf by a widening op", found, 3)
        parameter = amp.rand(4, 4, requires_grad=True)
        amp.assert_equal("casts of a float32 leaf by a loss", amp.casts(lambda: loss(parameter, wide), parameter), 0)


@scenario()
def test_off(amp: Amp) -> None:
    """cache_enabled=False casts at each use (amp.html#torch.autocast, cache_enabled)."""
    _, _, use = _weight_and_use(amp)
    with amp.region(cache_enabled=False):
        amp.assert_equal("casts without the cache", use(3), 3)


@scenario()
def test_off_inside_on(amp: Amp) -> None:
    """An inner region with cache_enabled=False neither uses nor drops the outer one's cached casts (amp.html)."""
    _, _, use = _weight_and_use(amp)
    with amp.region():
        amp.assert_equal("casts at first", use(), 1)
        with amp.region(cache_enabled=False):
            amp.assert_equal("casts inside", use(2), 2)
        amp.assert_equal("casts after the inner region", use(), 0)


@scenario()
def test_switched_inside(amp: Amp) -> None:
    """set_autocast_cache_enabled acts on the ops that follow (autocast_mode.cpp, cached_cast)."""
    _, _, use = _weight_and_use(amp)
    with amp.region():
        torch.set_autocast_cache_enabled(False)
        amp.assert_equal("casts after switching the cache off", use(2), 2)
        torch.set_autocast_cache_enabled(True)
        amp.assert_equal("casts after switching it on", use(2), 1)


@scenario()
def test_cleared_on_request(amp: Amp) -> None:
    """torch.clear_autocast_cache drops the casts (autocast_mode.cpp, clear_cache)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    with amp.region():
        amp.observe(lambda: torch.mm(x, weight))
        torch.clear_autocast_cache()
        amp.assert_equal("casts after clearing", amp.casts(lambda: torch.mm(x, weight), weight), 1)


@scenario(values=True)
def test_cleared_by_another_thread(amp: Amp) -> None:
    """Clearing drops the casts of every thread (autocast_mode.cpp: one map, behind a lock; pytorch#86136)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    with amp.region():
        torch.mm(x, weight)
        thread = Thread(target=torch.clear_autocast_cache)
        thread.start()
        thread.join()
        amp.assert_equal("casts after clearing", len(amp.copies(lambda: torch.mm(x, weight), weight)), 1)


@scenario(values=True)
def test_survives_another_thread(amp: Amp) -> None:
    """A region that ends in another thread changes no result here (amp.html: state is thread-local).

    It may cost casts: the cache is shared and cleared when any thread's outermost region ends.
    """
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)

    def elsewhere() -> None:
        with amp.activate(), amp.region():
            torch.mm(x, weight)

    with amp.region():
        first = torch.mm(x, weight)
        thread = Thread(target=elsewhere)
        thread.start()
        thread.join()
        second = torch.mm(x, weight)
    amp.assert_equal("values after another thread's region", amp.values(second), amp.values(first))
    (first.sum() + second.sum()).backward()
    amp.assert_equal("whether the leaf has a gradient", weight.grad is not None, True)


@scenario()
def test_inference_mode(amp: Amp) -> None:
    """Casts made in inference mode are not cached: no gradient could flow through them (pytorch#165068)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    with amp.region():
        with torch.inference_mode():
            amp.observe(lambda: torch.mm(x, weight))
        amp.assert_equal("casts after inference mode", amp.casts(lambda: torch.mm(x, weight), weight), 1)


@scenario()
def test_registered_as_reused(amp: Amp) -> None:
    """A tensor that CUDA graphs write again and again is cast at each use (autocast_mode.cpp, is_cached_tensor)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    torch._C._set_cached_tensors_enabled(True)
    torch._C._add_cached_tensor(weight)
    try:
        with amp.region():
            uses = amp.casts(lambda: [torch.mm(x, weight) for _ in range(3)], weight)
            amp.assert_equal("casts of a registered tensor", uses, 3)
    finally:
        torch._C._remove_cached_tensor(weight)
        torch._C._set_cached_tensors_enabled(False)


@scenario(values=True)
def test_no_growth_without_grad(amp: Amp) -> None:
    """Under no_grad three more forwards keep nothing more (pytorch#48049, pytorch#45910)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    with amp.region(), torch.no_grad():
        made = amp.copies(lambda: torch.mm(x, weight), weight)
        for _ in range(3):
            made += amp.copies(lambda: torch.mm(x, weight), weight)
        amp.assert_equal("casts kept after four forwards", sum(cast() is not None for cast in made), 1)


@scenario(values=True)
def test_freed_after_the_region(amp: Amp) -> None:
    """Casts and the weights they belong to do not leak out of the region (autocast_mode.cpp, nesting)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    with amp.region():
        made = amp.copies(lambda: torch.mm(x, weight), weight)
        amp.assert_equal("casts alive inside the region", sum(cast() is not None for cast in made), 1)
    source = weakref.ref(weight)
    weight = x  # the last reference
    amp.assert_equal("casts alive after the region", sum(cast() is not None for cast in made), 0)
    amp.assert_equal("whether the weight is alive after its last use", source() is not None, False)


@scenario(grad=named(with_grad=True, no_grad=False), values=True)
def test_address_used_again(amp: Amp, grad: bool) -> None:
    """A new weight at the address of a deleted one is not taken for it (autocast_mode.cpp: the weak reference)."""
    x = torch.ones(2, 64, device=amp.type)
    with amp.region(), torch.set_grad_enabled(grad):
        for number in range(40):  # an allocator uses blocks of 16 KiB again at once, tiny ones only by chance
            weight = torch.full((64, 64), float(number), device=amp.type, requires_grad=True)
            amp.assert_equal(f"product with weight {number}", amp.values(torch.mm(x, weight))[0][0], 64.0 * number)
            del weight


# ---- results
@scenario()
def test_inner_region_of_another_dtype(amp: Amp) -> None:
    """Ops run in the innermost region's dtype, also after casts were cached (amp.html#torch.autocast, dtype)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    inside = name_of(amp.other)
    with amp.region():
        amp.observe(lambda: torch.mm(x, weight))
        with amp.region(amp.other):
            got = amp.received("mm", lambda: torch.mm(x, weight))
            amp.assert_equal("dtypes a product receives in the inner region", got, (inside, inside))


@scenario(values=True)
def test_other_dtype_set_inside(amp: Amp) -> None:
    """After set_autocast_dtype ops run in the new dtype, also after casts were cached (torch.get_autocast_dtype)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    with amp.region():
        torch.mm(x, weight)
        torch.set_autocast_dtype(amp.type, amp.other)
        amp.assert_equal("dtype of a product of two weights", torch.mm(weight, weight).dtype, amp.other)


@scenario()
def test_other_dtype_in_a_thread(amp: Amp) -> None:
    """A region in another thread has its own dtype, whatever was cached here (amp.html: state is thread-local)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    other = name_of(amp.other)

    def elsewhere() -> tuple[str, ...] | None:
        with amp.region(amp.other):
            return amp.received("mm", lambda: torch.mm(x, weight))

    with amp.region():
        amp.observe(lambda: torch.mm(x, weight))
        amp.assert_equal("dtypes a product receives in another thread's region", amp.thread(elsewhere), (other, other))


@scenario(values=True)
def test_layer_in_two_dtypes(amp: Amp) -> None:
    """A layer runs in a region of one dtype and in an inner one of the other (amp.html#torch.autocast, dtype)."""
    layer, x = amp.module(lambda: torch.nn.Linear(4, 4)).requires_grad_(), amp.rand(2, 4)
    with amp.region():
        amp.assert_equal("dtype of the layer in the outer region", layer(x).dtype, amp.dtype)
        with amp.region(amp.other):
            found = str(amp.outcome(lambda: layer(x).dtype))
            amp.assert_equal("dtype of the layer in the inner region", found, str(amp.other))


CHANGES: dict[str, Callable[[torch.nn.Parameter], object]] = {
    "in_place": torch.no_grad()(lambda weight: weight.fill_(9)),
    "loaded": lambda w: torch.nn.ParameterList([w]).load_state_dict({"0": torch.full_like(w, 9)}),
    "replaced": lambda weight: setattr(weight, "data", torch.full((2, 5), 9.0, device=weight.device)),
}


@scenario(change=CHANGES, values=True)
def test_changed_weight(amp: Amp, change: str) -> None:
    """A product has the values its weight has now (torch.mm; amp.html: cache_enabled does not change values)."""
    weight, x = torch.nn.Parameter(torch.ones(2, 2, device=amp.type)), torch.ones(1, 2, device=amp.type)
    with amp.region():
        amp.assert_equal("product before the change", amp.values(torch.mm(x, weight)), [[2.0, 2.0]])
        CHANGES[change](weight)
        amp.assert_equal("product after the change", amp.values(torch.mm(x, weight)), [[18.0] * weight.shape[1]])


@scenario(values=True)
def test_after_a_fake_mode(amp: Amp) -> None:
    """An op on tensors with values gives values, though the weight was used in a fake mode before (amp.html)."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # takes over a second

    weight, x = amp.rand(2, 2, requires_grad=True), amp.rand(1, 2)
    if not torch._C._has_storage(weight):
        amp.unsupported("PyTorch makes no fake tensor of one whose storage it cannot read (OpaqueTensorImpl)")
    with amp.region():
        with FakeTensorMode(allow_non_fake_inputs=True):
            torch.mm(torch.ones(1, 2, device=amp.type), weight)
        amp.assert_equal("class of a product after the fake mode", type(torch.mm(x, weight)).__name__, "Tensor")
