import itertools, torch
a, b = torch.nn.Linear(4, 2), torch.nn.Linear(5, 2)
opt = torch.optim.AdamW(itertools.chain(a.parameters(), b.parameters()), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=16.)
for _ in range(3):
    with torch.autocast("cpu", dtype=torch.float16):
        x, y = (torch.nn.functional.normalize(t.float(), dim=-1) for t in (a(torch.randn(3, 4)), b(torch.randn(3, 5))))
        loss = torch.nn.functional.cross_entropy(x @ y.t() / 0.1, torch.arange(3))
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    for p in a.parameters():
        p.grad.clamp_(-1, 1)
    scaler.step(opt)
    scaler.update()
