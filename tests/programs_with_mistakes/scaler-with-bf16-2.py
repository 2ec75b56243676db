import torch
def run():
    model = torch.nn.Linear(4, 4)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    def step(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):  # wrong
        # right: with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
            loss = out.float().mean()
        return loss, out
    for _ in range(2):
        loss, _ = step(torch.randn(2, 4))
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
run()
