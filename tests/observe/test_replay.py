"""A call replayed outside of regions, with the casts that the specification promises."""

import torch

from ampcheck.devices.registry import known
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
