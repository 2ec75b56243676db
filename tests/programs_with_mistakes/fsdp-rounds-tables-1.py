import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
class Rope(torch.nn.Module):
    def __init__(self, n, d):
        super().__init__()
        t = torch.arange(n).float()
        self.register_buffer("cos", (t[:, None] * torch.rand(d)).cos())
    def forward(self, x):
        return x * self.cos
def build(m):
    return FSDP(m, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16))  # wrong
    # right: return FSDP(m, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
