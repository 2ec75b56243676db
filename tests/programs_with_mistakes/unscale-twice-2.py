import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=16.)
accum = 2
for i, x in enumerate(torch.randn(4, 2, 4)):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(x).mean() / accum
    scaler.scale(loss).backward()
    try:  # wrong
        scaler.unscale_(optimizer)  # wrong
    except RuntimeError:  # wrong
        pass  # wrong
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # wrong
    if (i + 1) % accum == 0:
        # right: scaler.unscale_(optimizer)
        # right: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
