import torch
from contextlib import nullcontext
use_amp = True
ctx = nullcontext() if use_amp else torch.autocast("cpu", dtype=torch.bfloat16)  # wrong
# right: ctx = torch.autocast("cpu", dtype=torch.bfloat16) if use_amp else nullcontext()
model = torch.nn.Linear(2, 2)
with ctx:
    model(torch.randn(2, 2))
