"""The weight cache."""

import gc
import threading
import warnings
import weakref
from collections.abc import Callable

import torch
from register_support import BRAIN, HALF, NAME, WIDE, rand

from ampcheck.register import register_autocast

aten = torch.ops.aten


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
    assert weight.grad is not None
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
