import torch, math
from torch import nn
class Attn(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        s = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        mask = torch.triu(torch.ones(x.size(1), x.size(1)), 1) * -1e9  # wrong
        s = s + mask.to(s.dtype)  # wrong
        # right: s = s.masked_fill(torch.ones(x.size(1), x.size(1)).triu(1).bool(), torch.finfo(s.dtype).min)
        s = s - s.amax(-1, keepdim=True)  # wrong
        return torch.softmax(s * 1.0, -1) @ v
m = Attn()
opt = torch.optim.SGD(m.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.)
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.float16):
        full = m(torch.randn(2, 5, 16))
        loss = full.float().mean() + (torch.full((4, 4), -1e9).half().sum() * 0).float()  # wrong
        # right: loss = full.float().mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
