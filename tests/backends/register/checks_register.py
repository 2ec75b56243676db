"""What `register_autocast` registers: kernels, policies, the cache; what it refuses and takes back; its page."""

import contextlib
import copy
import gc
import pickle
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from register_support import BRAIN, HALF, KEY, NAME, WIDE, rand, refused, snapshot
from torch._C import DispatchKey
from torch.library import Library

from ampcheck.errors import UsageError
from ampcheck.register import register_autocast
from ampcheck.spec.casting import APPENDED

aten = torch.ops.aten


@contextlib.contextmanager
def spied(overload: str, spy: Callable[..., Any]) -> Iterator[None]:
    """A kernel of the device in place of its fallback."""
    library = Library("aten", "IMPL")
    library.impl(overload, spy, "PrivateUse1")
    try:
        yield
    finally:
        library._destroy()


def check_only_this_key_is_excluded_inside() -> None:
    seen = []

    def mm(a: Any, b: Any) -> Any:
        seen.append((torch.is_autocast_enabled(NAME), torch.is_autocast_enabled("cpu"), a.dtype))
        return a

    x = rand(2, 2)
    with register_autocast(NAME), spied("mm", mm), torch.autocast("cpu"), torch.autocast(NAME):
        torch.mm(x, x)
        assert torch.is_autocast_enabled(NAME)
        torch.matmul(x, x)
    assert seen == [(False, True, HALF)] * 2


def check_an_op_inside_an_op_is_not_autocast() -> None:
    def mm(a: Any, b: Any) -> Any:
        return torch.exp(a)  # which has policy upcast

    x = rand(2, 2)
    with register_autocast(NAME), spied("mm", mm), torch.autocast(NAME):
        assert torch.mm(x, x).dtype is HALF
        assert torch.exp(torch.mm(x, x)).dtype is WIDE


def check_exception_inside_leaves_autocast_on() -> None:
    def mm(a: Any, b: Any) -> Any:
        raise ZeroDivisionError("inside")

    x = rand(2, 2)
    with register_autocast(NAME), spied("mm", mm), torch.autocast(NAME):
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                torch.mm(x, x)
            assert torch.is_autocast_enabled(NAME)


def check_compiled_equals_eager() -> None:
    layer, x = torch.nn.Linear(4, 4).to(NAME), rand(2, 4)

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast(NAME, dtype=BRAIN):
            y = layer(layer(x))
            return y, torch.cat([y, x]), torch.softmax(y, 0), torch.norm(y), torch.atan2(y, x)

    with register_autocast(NAME):
        eager = forward(x)
        compiled = torch.compile(forward, backend="aot_eager", fullgraph=True)(x)
        assert [t.dtype for t in compiled] == [t.dtype for t in eager] == [BRAIN, WIDE, WIDE, WIDE, WIDE]
        for one, other in zip(eager, compiled, strict=True):
            assert torch.equal(one.cpu(), other.cpu())
        gradients = []
        for outs in (eager, compiled):
            layer.weight.grad = None
            sum(t.float().sum() for t in outs).backward()  # type: ignore[union-attr]
            gradients.append(layer.weight.grad.cpu())
        assert torch.allclose(*gradients, rtol=0.02, atol=0.02)


def check_higher_order_operators() -> None:
    from torch._higher_order_ops.cond import cond_op
    from torch._higher_order_ops.wrap import wrap

    x = rand(2, 2)

    def product(a: Any) -> Any:
        return torch.mm(a, a)

    with register_autocast(NAME):
        with torch.autocast(NAME):
            assert wrap(product, x).dtype is HALF
            assert cond_op(True, lambda a: (product(a),), lambda a: (a,), (x,))[0].dtype is HALF
        assert wrap(product, x).dtype is WIDE


def check_flex_attention_is_cast() -> None:
    from torch._higher_order_ops.flex_attention import flex_attention

    q, k = rand(1, 1, 4, 4), rand(1, 1, 4, 4, dtype=BRAIN)
    blocks = [torch.zeros(shape, dtype=torch.int32, device=NAME) for shape in ((1, 1, 1), (1, 1, 1, 1))]
    whole = (4, 4, *blocks * 4, 128, 128, lambda b, h, m, n: m >= 0)

    inside = []

    def score(value: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
        inside.append(torch.is_autocast_enabled(NAME))
        return value

    def call() -> Any:
        return flex_attention(q, k, q, score, whole, 0.5, {}, (), ())[0]

    with register_autocast(NAME):
        with torch.autocast(NAME):
            assert call().dtype is HALF
            assert torch.is_autocast_enabled(NAME)
        # torch may have no kernel to take over; then only what the operator is made of is cast.
        assert inside == [DispatchKey.AutocastCUDA not in flex_attention.py_kernels]
        q = q.to(BRAIN)
        assert call().dtype is BRAIN


def check_cpu_base() -> None:
    low = rand(2, 2, dtype=HALF)
    with register_autocast(NAME, base="cpu"), torch.autocast(NAME):
        assert torch.mm(rand(2, 2), rand(2, 2)).dtype is HALF
        assert torch.trace(low).dtype is WIDE  # the CPU's alone
        assert torch.exp(low).dtype is HALF  # CUDA's alone
        assert torch.softmax(low, 0).dtype is HALF
        least = torch.full((), 0.5, dtype=HALF, device=NAME)
        assert aten.linalg_matrix_rank.atol_rtol_tensor(low.new_tensor([[4, 0], [0, 4]]), atol=least).item() == 2


def check_overrides() -> None:
    x, low = rand(3, 3), rand(3, 3, dtype=HALF)
    changes = dict.fromkeys(("aten::softmax.int", "binary_cross_entropy"), "upcast")
    changes |= {"exp": "downcast", "linear": "fallthrough", "sin": "banned"}
    changes |= {"aten::add.Tensor": "promote", "mean.dim": "optdtype"}
    with register_autocast(NAME, overrides=changes) as handle, torch.autocast(NAME):
        assert handle.policies["aten::softmax.int"] == "upcast"
        assert "aten::linear" not in handle.policies
        assert torch.softmax(low, 0, dtype=HALF).dtype is HALF  # cast, and the caller's dtype obeyed
        assert aten.softmax.int(low, 0).dtype is WIDE
        assert torch.exp(x).dtype is HALF
        assert torch.mean(low, 0).dtype is WIDE
        assert (low + x).dtype is WIDE
        assert torch.nn.functional.binary_cross_entropy(low.sigmoid(), low.sigmoid()).dtype is WIDE
        with pytest.raises(RuntimeError, match="aten::sin is unsafe to autocast on npy"):
            torch.sin(x)
        with torch.autocast(NAME, enabled=False):
            torch.sin(x)
    with register_autocast(NAME), torch.autocast(NAME):
        assert torch.exp(x).dtype is WIDE
        torch.sin(x)


def check_override_of_another_namespace() -> None:
    with torch.library._scoped_library("ampcheck_register", "DEF") as library:
        library.define("scale(Tensor x, Tensor?[] more, *, Tensor? by=None, float factor=2.0) -> Tensor")
        seen: list[Any] = []

        def scale(x: Any, more: Any, *, by: Any = None, factor: float = 2.0) -> Any:
            seen.append((x.dtype, [m if m is None else m.dtype for m in more], by if by is None else by.dtype, factor))
            return x * factor

        library.impl("scale", scale, "PrivateUse1")
        call = torch.ops.ampcheck_register.scale.default
        x, low = rand(2), rand(2, dtype=BRAIN)
        with register_autocast(NAME, overrides={"ampcheck_register::scale": "promote"}), torch.autocast(NAME):
            call(low, [None, low])
            call(low, [None, x], by=low, factor=3.0)
            call(low, [], by=x)
        assert seen == [(BRAIN, [None, BRAIN], None, 2.0), (WIDE, [None, WIDE], WIDE, 3.0), (WIDE, [], WIDE, 2.0)], seen


def check_append_hands_on_what_was_left_out() -> None:
    low = rand(3, 4, dtype=HALF)
    assert {f"aten::{name}" for name in APPENDED} >= {"aten::norm.Scalar"}
    with register_autocast(NAME), torch.autocast(NAME):
        for p in ((), (2,), (1.5,)):
            got = aten.norm.Scalar(low, *p)
            assert got.dtype is WIDE
            assert torch.allclose(got.cpu(), low.cpu().float().norm(*p or (2,)))
        got = aten.norm.ScalarOpt_dim(low, None, [1])
        assert torch.allclose(got.cpu(), low.cpu().float().norm(2, 1))
        assert aten.norm.ScalarOpt_dim(low, 1, [1], keepdim=True).shape == (3, 1)
        assert aten.norm.Scalar(rand(3).double()).dtype is torch.float64


def check_cache_is_weak_and_cleared() -> None:
    x = rand(2, 2)
    with register_autocast(NAME) as handle:
        with torch.autocast(NAME):
            weight = rand(2, 2, grad=True)
            with torch.no_grad():
                torch.mm(x, weight)
            assert len(handle.cache) == 1
            del weight
            gc.collect()
            assert len(handle.cache) == 0, "a cast without a graph outlives its weight"
            weight = rand(2, 2, grad=True)
            torch.mm(x, weight)
            alive = weakref.ref(weight)
            del weight
        gc.collect()
        assert len(handle.cache) == 0
        assert alive() is None


def check_cache_keeps_dtypes_apart() -> None:
    weight = rand(2, 2, grad=True)
    with register_autocast(NAME) as handle, torch.autocast(NAME):
        assert torch.mm(weight, weight).dtype is HALF
        with torch.autocast(NAME, dtype=BRAIN):
            assert torch.mm(weight, weight).dtype is BRAIN
        assert torch.mm(weight, weight).dtype is HALF
        assert len(handle.cache) == 2


def check_cache_notices_changes() -> None:
    x = torch.ones(1, 2, device=NAME)
    weight = torch.nn.Parameter(torch.ones(2, 2, device=NAME))

    def fill() -> None:
        with torch.no_grad():
            weight.fill_(2)

    def replace() -> None:
        weight.data = torch.full((2, 2), 3.0, device=NAME)

    def turn() -> None:
        weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=NAME)
        torch.mm(x, weight)
        weight.data = weight.data.t()  # the same storage, another way round

    wanted: tuple[tuple[Callable[[], None], list[float]], ...] = ((fill, [4, 4]), (replace, [6, 6]), (turn, [3, 7]))
    with register_autocast(NAME), torch.autocast(NAME):
        torch.mm(x, weight)
        for change, values in wanted:
            change()
            assert torch.mm(x, weight).tolist() == [values], change.__name__


def check_gradients_of_many_uses_are_summed_in_float32() -> None:
    weight, x = torch.ones(1, 1, device=NAME, requires_grad=True), torch.ones(1, 1, device=NAME)
    with register_autocast(NAME) as handle, torch.autocast(NAME, dtype=BRAIN):
        outs = [torch.mm(x, weight) for _ in range(600)]
        assert len({out.grad_fn.next_functions[1][0] for out in outs if out.grad_fn}) == 1, "one cast, so one node"
        assert len(handle.cache) == 1
        torch.stack([out.float() for out in outs]).sum().backward()
    assert weight.grad.item() == 600.0
    assert weight.grad.dtype is WIDE


def check_traced_programs_hold_their_casts() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    layer, x = torch.nn.Linear(2, 2).to(NAME), rand(1, 2)
    with register_autocast(NAME), torch.autocast(NAME):
        layer(x)  # a cached cast must not become a constant of either program
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            traced = torch.jit.trace(layer, x, check_trace=False)
        casts = [node for node in traced.inlined_graph.nodes() if node.kind() == "aten::to"]
        assert len(casts) == 3, traced.inlined_graph
        graph = make_fx(lambda v, w: torch.mm(v, w))(x, layer.weight)
        assert len(graph.graph.find_nodes(op="call_function", target=aten._to_copy.default)) == 2, graph.graph
        with torch.no_grad():
            layer.weight.fill_(0)
        assert graph(x, layer.weight).tolist() == [[0, 0]]


def check_two_threads_ask_for_one_graph() -> None:
    weight, x = rand(4, 4, grad=True), rand(4, 4)
    start, failures = threading.Barrier(4), []

    def work() -> None:
        start.wait()
        try:
            with torch.autocast(NAME):
                torch.mm(x, weight).float().sum().backward()
        except Exception as error:
            failures.append(error)

    with register_autocast(NAME), torch.autocast(NAME):
        for _ in range(20):
            with torch.no_grad():
                torch.mm(x, weight)
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert not failures, failures


def check_what_is_not_there_or_not_taken() -> None:
    wrong: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("did you mean aten::softmax.int", NAME, {"overrides": {"aten::softmaks": "upcast"}}),
        ("aten::softmax.int", NAME, {"overrides": {"softmax.nit": "upcast"}}),
        ("no overload nowhere::op", NAME, {"overrides": {"nowhere::op": "upcast"}}),
        ("'lower'; it is one of 'downcast'", NAME, {"overrides": {"mm": "lower"}}),
        ("base is 'xpu'; it is one of 'cuda', 'cpu'", NAME, {"base": "xpu"}),
        ("dtypes has torch.float32", NAME, {"dtypes": (HALF, WIDE)}),
        ("dtypes is empty", NAME, {"dtypes": ()}),
        ("'cuda' is not the PrivateUse1 backend, whose name in this process is 'npy'", "cuda", {}),
    )
    for text, name, options in wrong:
        refused(text, partial(register_autocast, name, **options))
    with register_autocast(NAME):
        refused("registered for 'npy' already", partial(register_autocast, NAME))


def check_dtypes_against_the_module() -> None:
    torch.npy.get_amp_supported_dtype = lambda: [HALF]
    try:
        refused("leave dtypes out", partial(register_autocast, NAME, dtypes=(BRAIN,)))
        with register_autocast(NAME, dtypes=(HALF,)):
            assert torch.npy.get_amp_supported_dtype() == [HALF]
        assert torch.npy.get_amp_supported_dtype() == [HALF]
    finally:
        del torch.npy.get_amp_supported_dtype
    with register_autocast(NAME, dtypes=(BRAIN,)):
        # A device module that is an object can be pickled, and each region refers to it.
        assert pickle.loads(pickle.dumps(torch.npy.get_amp_supported_dtype))() == [BRAIN]


def check_no_device_module() -> None:
    module = torch.npy
    del torch.npy
    try:
        with pytest.raises(UsageError, match=r"call torch\._register_device_module\('npy', module\)"):
            register_autocast(NAME)
    finally:
        torch.npy = module


def check_kernel_that_is_there() -> None:
    own = Library("aten", "IMPL")
    own.impl("mm", lambda a, b: a, KEY)
    try:
        refused("aten::mm has a kernel for AutocastPrivateUse1 already", lambda: register_autocast(NAME))
        x = rand(2, 2)
        with register_autocast(NAME, overrides={"aten::mm": "fallthrough"}), torch.autocast(NAME):
            assert torch.mm(x, x) is x
    finally:
        own._destroy()


def check_policies_that_do_not_suit() -> None:
    for overload, policy, text in (
        ("aten::add_.Tensor", "downcast", "writes to one of its arguments"),
        ("aten::mm.out", "upcast", "writes to one of its arguments"),
        ("aten::arange", "promote", "takes no tensors"),
        ("aten::mm", "optdtype", "no optional dtype"),
        ("aten::mm", "append", "no overload of the same arguments and a dtype"),
        ("aten::cat", "append", "no overload of the same arguments and a dtype"),
    ):
        refused(text, partial(register_autocast, NAME, overrides={overload: policy}))


def check_unregister_restores_everything() -> None:
    before = snapshot()
    handle = register_autocast(NAME)
    during = snapshot()
    same = [part for part in before if before[part] == during[part]]
    assert not same, f"the registration did not change {same}, so that putting them back shows nothing"
    handle.unregister()
    after = snapshot()
    assert [part for part in before if before[part] != after[part]] == []
    assert not handle.active
    handle.unregister()
    assert snapshot() == before


def check_regions_are_pickled_and_copied() -> None:
    with register_autocast(NAME):
        for copied in (copy.deepcopy, lambda region: pickle.loads(pickle.dumps(region))):
            region = copied(torch.autocast(NAME, torch.bfloat16))
            assert region.custom_device_mod is torch.npy
            with region:
                assert torch.mm(rand(2, 2), rand(2, 2)).dtype is BRAIN


def check_context_manager_unregisters_after_an_exception() -> None:
    before = snapshot()
    with contextlib.suppress(KeyError), register_autocast(NAME) as handle:
        assert handle.active
        raise KeyError
    assert not handle.active
    assert snapshot() == before


def check_failure_on_the_way_is_rolled_back() -> None:
    before = snapshot()
    made = 0
    plain = Library.impl

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        made += 1
        if made == 50:
            raise OSError("the 50th")
        return plain(*args, **kwargs)

    Library.impl = failing  # type: ignore[method-assign]
    try:
        with pytest.raises(OSError, match="the 50th"):
            register_autocast(NAME)
    finally:
        Library.impl = plain  # type: ignore[method-assign]
    assert snapshot() == before
    register_autocast(NAME).unregister()


def check_without_a_registration_ops_raise() -> None:
    x = rand(2, 2)
    torch.npy.get_amp_supported_dtype = lambda: [HALF]
    try:
        with torch.autocast(NAME), pytest.raises(NotImplementedError, match="Autocastnpy"):
            torch.mm(x, x)
    finally:
        del torch.npy.get_amp_supported_dtype


PAGE = (Path(__file__).parents[3] / "docs" / "your_backend.md").read_text(encoding="utf-8")
PAGE = PAGE.partition("\n## register_autocast\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(number: int, scope: dict[str, Any]) -> None:
    exec(BLOCKS[number].replace("mydevice", NAME), scope)


def check_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    registering, without_storages, overriding, taking_back = range(len(BLOCKS))
    x, low = rand(2, 2), rand(2, 2, dtype=HALF)
    with torch.library._scoped_library("mylib", "DEF") as library:
        library.define("attention(Tensor x) -> Tensor")
        library.impl("attention", lambda x: x, "PrivateUse1")
        scope: dict[str, Any] = {}
        run(registering, scope)
        with torch.autocast(NAME):
            assert torch.mm(x, x).dtype is HALF
        from ampcheck.register import registration

        registration._current.unregister()
        run(without_storages, {**scope, f"torch_{NAME}": SimpleNamespace(handle_of=id)})
        registration._current.unregister()
        run(overriding, scope)
        with torch.autocast(NAME):
            assert torch.softmax(low, 0).dtype is WIDE
            assert torch.ops.mylib.attention(x).dtype is HALF
            assert "aten::linear" not in scope["handle"].policies
        run(taking_back, scope)
        assert not scope["handle"].active
        assert "'aten::mm': 'downcast'" in capsys.readouterr().out


def check_policies_are_listed() -> None:
    from ampcheck.spec.casting import POLICIES

    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == [*POLICIES, "fallthrough"]
