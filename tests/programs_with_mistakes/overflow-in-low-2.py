import torch
class N(torch.nn.Module):
    def __init__(self, d): super().__init__(); self.w = torch.nn.Parameter(torch.ones(d)); self.l = torch.nn.Linear(d, d)
    def forward(self, x):
        h = self.l(x) * 5000
        return h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6) * self.w
m = N(16); o = torch.optim.Adam(m.parameters()); s = torch.amp.GradScaler("cpu")
for _ in range(3):
    with torch.autocast("cpu", dtype=torch.float16): l = (m(torch.randn(4, 16)) - 1).abs().mean()
    s.scale(l).backward(); s.step(o); s.update(); o.zero_grad()
