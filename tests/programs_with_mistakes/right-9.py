import torch
m = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=4.)
for _ in range(2):
    x = torch.randn(2, 4, requires_grad=True)
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = m(x).tanh().float().mean()
    grads = torch.autograd.grad(scaler.scale(loss), m.parameters(), create_graph=True)
    inv = 1.0 / scaler.get_scale()
    grads = [g * inv for g in grads]
    with torch.autocast("cpu", dtype=torch.float16):
        pen = sum(g.pow(2).sum() for g in grads).sqrt()
        loss = loss + pen
    scaler.scale(loss).backward()
    scaler.step(opt); scaler.update()
