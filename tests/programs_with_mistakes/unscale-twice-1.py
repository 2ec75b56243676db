import torch
def grad_norm(scaler, optimizer, model):
    scaler.unscale_(optimizer)
    return torch.stack([p.grad.norm() for p in model.parameters()]).norm()
def clip(scaler, optimizer, model, limit):
    scaler.unscale_(optimizer)  # wrong
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
def train(model, steps=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.)
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(2, 4)).mean()
        scaler.scale(loss).backward()
        norm = grad_norm(scaler, optimizer, model)
        try:
            clip(scaler, optimizer, model, 1.0)
        except RuntimeError as e:
            print(e)
        scaler.step(optimizer)
        scaler.update()
train(torch.nn.Linear(4, 4))
