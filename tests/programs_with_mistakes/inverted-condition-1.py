import torch
from contextlib import nullcontext
class C: mixed_precision = True
def ctx(cfg):
    if cfg.mixed_precision:
        return nullcontext()
    return torch.autocast("cpu", dtype=torch.bfloat16)
with ctx(C()): torch.nn.Linear(2, 2)(torch.randn(1, 2))
