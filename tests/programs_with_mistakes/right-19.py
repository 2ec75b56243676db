import copy, torch
m = torch.nn.Linear(16, 16)
ema = copy.deepcopy(m)
opts = [torch.optim.SGD([m.weight], lr=0.01), torch.optim.SGD([m.bias], lr=0.01)]
scheds = [torch.optim.lr_scheduler.StepLR(o, 1) for o in opts]
scaler = torch.amp.GradScaler("cpu", init_scale=4.)
for epoch in range(2):
    for _ in range(2):
        [o.zero_grad() for o in opts]
        with torch.autocast("cpu", dtype=torch.float16):
            loss = m(torch.randn(4, 16)).float().pow(2).mean()
        scaler.scale(loss).backward()
        for o in opts:
            scaler.unscale_(o)
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        for o in opts:
            scaler.step(o)
        scaler.update()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), m.parameters()):
                e.lerp_(p, 0.001)
    for s in scheds:
        s.step()
