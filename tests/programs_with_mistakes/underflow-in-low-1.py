import torch
m = torch.nn.Linear(8, 8)
opt = torch.optim.SGD(m.parameters(), lr=1e-3)
sc = torch.amp.GradScaler("cpu", init_scale=4.)
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.float16):
        h = m(torch.randn(4, 8)).relu()
        h = h - h
        p = (h / (h.sum(-1, keepdim=True).half() + 1e-8))  # wrong
        # right: p = h.float() / (h.float().sum(-1, keepdim=True) + 1e-8)
        loss = p.float().mean()
    sc.scale(loss).backward(); sc.step(opt); sc.update()
