import torch
m = torch.nn.Linear(3, 3)
o = torch.optim.SGD(m.parameters(), lr=.1)
scaler = torch.amp.GradScaler("cpu", init_scale=4.)
for i, x in enumerate(torch.randn(4, 2, 3)):
    sync = (i + 1) % 2 == 0
    with torch.autocast("cpu", dtype=torch.float16):
        l = m(x).float().mean() / 2
    scaler.scale(l).backward()
    if not sync:
        continue
    if scaler.is_enabled():
        scaler.unscale_(o)
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.)
    scaler.step(o)
    scaler.update()
    o.zero_grad()
