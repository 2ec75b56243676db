"""The replay of autocast, and what is left out of a compilation."""

from collections.abc import Callable

import pytest
import torch
from torch._dynamo import guards
from torch._export import utils
from torch.export import decomp_utils, exported_program

from ampcheck.compilers.kinds import quiet
from ampcheck.devices.registry import known
from ampcheck.observe.isolation import reset
from ampcheck.observe.overhead import without_overhead
from ampcheck.observe.recorder import by_policies, replay

DEVICES = known()


def test_replay_casts_by_the_specification() -> None:
    device = DEVICES["virtual:cuda"]
    with device.activate():
        x = torch.empty(3, 3, device="cuda", dtype=torch.float16)
        single = torch.empty(3, 3, device="cuda")

        def call() -> list[torch.Tensor]:
            return [torch.mm(single, x), torch.exp(x), torch.sum(x), torch.atan2(x, single), torch.relu(x)]

        seen, kernels = replay(call, "cuda", device.policies(), by_policies(device.policies(), torch.bfloat16))
    assert [t.dtype for t in seen.outputs] == [torch.bfloat16, *[torch.float32] * 3, torch.float16]
    assert kernels == [("mm", ("bf16",) * 2), ("exp", ("fp32",)), ("sum", ("fp16",)), ("atan2", ("fp32",) * 2)]


def test_replay_of_the_other_overload_and_of_a_refusal() -> None:
    device = DEVICES["virtual:cuda"]
    with device.activate():
        x = torch.empty(3, 3, device="cuda", dtype=torch.float16)
        promised = device.policies(), by_policies(device.policies(), torch.float16)
        norm, _ = replay(lambda: torch.ops.aten.norm.ScalarOpt_dim(x, 2, [1]), "cuda", *promised)
        loss = torch.nn.functional.binary_cross_entropy
        refused, _ = replay(lambda: loss(x, x), "cuda", *promised)
    assert [t.dtype for t in norm.outputs] == [torch.float32]
    assert "binary_cross_entropy_with_logits" in str(refused.error)


def test_composite_ops_are_listed_as_before_and_those_made_meanwhile_too() -> None:
    before = decomp_utils._collect_all_valid_cia_ops()
    with torch.library._scoped_library("ampcheck_overhead", "DEF") as library, without_overhead():
        assert exported_program._collect_all_valid_cia_ops() == decomp_utils._collect_all_valid_cia_ops() == before
        library.define("half(Tensor x) -> Tensor", tags=())
        library.impl("half", lambda x: x / 2, "CompositeImplicitAutograd")
        made = exported_program._collect_all_valid_cia_ops()
        assert made - before == {torch.ops.ampcheck_overhead.half.default}


def test_a_program_decomposes_as_before() -> None:
    def decomposed() -> str:
        with quiet():
            program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
            return str(program.run_decompositions().graph)

    before = decomposed()
    with without_overhead():
        assert decomposed() == before


def test_what_is_left_out_is_put_back() -> None:
    measured, looked_up = guards.profile_guard_manager, utils._materialize_cpp_cia_ops
    with without_overhead():
        assert guards.profile_guard_manager is not measured
        assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)) == 2
        decomp_utils._collect_all_valid_cia_ops()
        assert utils._materialize_cpp_cia_ops is looked_up
    assert guards.profile_guard_manager is measured


def test_cases_compile_the_same_code_as_often_as_there_are_cases() -> None:
    """Dynamo compiles a function eight times, and refuses the ninth."""

    def made(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        return torch.compile(lambda x: x + len(name), backend="eager", fullgraph=True)

    names = ["a" * length for length in range(12)]
    for name in names:
        reset({})
        assert made(name)(torch.ones(1)) == 1 + len(name)
    with pytest.raises(Exception, match="Hard failure due to fullgraph"):
        _ = [made(name)(torch.ones(1)) for name in names]
    reset({})
