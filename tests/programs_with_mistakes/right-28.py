import torch
nets = [torch.nn.Linear(4, 4) for _ in range(2)]
opts = [torch.optim.SGD(n.parameters(), lr=0.1) for n in nets]
scaler = torch.amp.GradScaler("cpu", init_scale=64.)
for _ in range(3):
    for net, opt in zip(nets, opts):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = net(torch.randn(2, 4)).float().mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
