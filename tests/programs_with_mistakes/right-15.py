import torch
import torch.nn.functional as F
w = torch.nn.Linear(16, 48)
opt = torch.optim.SGD(w.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.)
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.float16):
        q, k, v = w(torch.randn(2, 5, 16)).chunk(3, -1)
        s = q @ k.mT
        s = s.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), torch.finfo(s.dtype).min)
        o = s.softmax(-1) @ v + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        loss = o.float().mean()
    scaler.scale(loss).backward(); scaler.step(opt); scaler.update(); opt.zero_grad()
