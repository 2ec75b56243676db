import torch
from contextlib import nullcontext
model = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
use_amp = True
ctx = torch.autocast("cpu", dtype=torch.bfloat16) if use_amp else nullcontext()
for _ in range(2):
    with torch.enable_grad(), ctx:
        loss = model(torch.randn(2, 4)).float().mean()
        loss.backward()  # wrong
    # right: loss.backward()
    opt.step()
    opt.zero_grad()
