import torch
class Rotary(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("inv", 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d))
        self.proj = torch.nn.Linear(d // 2, d)
    def forward(self, x):
        pos = torch.arange(x.shape[1], device=x.device).float()
        freqs = pos[:, None] @ self.inv[None, :]  # wrong
        # right: freqs = pos[:, None] * self.inv[None, :]
        return self.proj(freqs.sin())
r = Rotary(8)
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = r(torch.randn(1, 700, 8))
out.float().mean().backward()
