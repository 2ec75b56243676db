import torch
model = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
def epoch(batches):
    for x in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(x).float().mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        # right: before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        plateau.step(1.0)  # wrong
        # right: if scaler.get_scale() >= before:
            # right: plateau.step(1.0)
epoch(torch.randn(4, 2, 4))
