import torch
from torch import nn
base = nn.Linear(8, 8).to(torch.bfloat16).requires_grad_(False)
a, b = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
opt = torch.optim.AdamW([*a.parameters(), *b.parameters()], lr=1e-3)
for x in torch.randn(3, 4, 8):
    with torch.autocast("cpu", torch.bfloat16):
        y = base(x) + b(a(x))
        loss = nn.functional.mse_loss(y.float(), x)
    loss.backward(); opt.step(); opt.zero_grad()
