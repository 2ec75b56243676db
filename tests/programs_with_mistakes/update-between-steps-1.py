import torch
nets = [torch.nn.Linear(4, 4) for _ in range(2)]
opts = [torch.optim.SGD(n.parameters(), lr=0.1) for n in nets]
scaler = torch.amp.GradScaler("cpu", init_scale=32.)
for epoch in range(2):
    x = torch.randn(3, 4)
    with torch.autocast("cpu", dtype=torch.float16):
        total = sum(n(x).square().mean() for n in nets)
    scaler.scale(total).backward()
    for n, o in zip(nets, opts):
        scaler.step(o)
        scaler.update()  # wrong
        o.zero_grad()
    # right: scaler.update()
