import torch
m = torch.nn.Linear(3, 3)
opt = torch.optim.SGD(m.parameters(), lr=1.)
sc = torch.amp.GradScaler("cpu", init_scale=128.)
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.float16):
        l = m(torch.randn(2, 3)).float().mean()
    sc.scale(l).backward()
    sc.unscale_(opt)
    norm = torch.nn.utils.get_total_norm([p.grad for p in m.parameters()])
    if norm > 0:
        try:
            sc.unscale_(opt)
        except RuntimeError: ...
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.)
    sc.step(opt); sc.update(); opt.zero_grad()
