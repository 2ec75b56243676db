import torch
from torch import nn
class LoRA(nn.Module):
    def __init__(self, base, r=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Linear(base.in_features, r, bias=False), nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)
    def forward(self, x):
        return self.base(x) + self.b(self.a(x))
model = LoRA(nn.Linear(8, 8))
params = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.AdamW(params, lr=1e-3)
for x in torch.randn(3, 4, 8):
    with torch.autocast("cpu", torch.float16):
        y = model(x)
        loss = nn.functional.mse_loss(y, x)
    loss.backward()
    opt.step(); opt.zero_grad()
