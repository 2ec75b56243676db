import torch
m = torch.nn.Linear(4, 4); o = torch.optim.SGD(m.parameters(), .1); s = torch.amp.GradScaler("cpu")
def clip_hook(g): return torch.clamp(g, -1.0, 1.0)
for p in m.parameters(): p.register_hook(clip_hook)
for _ in range(3):
    with torch.autocast("cpu", dtype=torch.float16): l = m(torch.randn(2, 4)).square().sum()
    s.scale(l).backward(); s.step(o); s.update(); o.zero_grad()
