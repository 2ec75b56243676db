import torch
class Rotary(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        inv = 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d)
        t = torch.arange(700).float()
        self.register_buffer("cos", torch.outer(t, inv).cos())
        self.proj = torch.nn.Linear(d // 2, d)
    def forward(self, x):
        return self.proj(x[..., ::2] * self.cos)
r = Rotary(8)
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = r(torch.randn(1, 700, 8)).float().mean()
loss.backward()
