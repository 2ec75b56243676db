import copy, torch
model = torch.nn.Linear(16, 16)
ema = copy.deepcopy(model).bfloat16()  # wrong
# right: ema = copy.deepcopy(model)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(4, 16)).float().pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    for e, p in zip(ema.parameters(), model.parameters()):
        e.data = e.data * 0.999 + p.data.bfloat16() * 0.001  # wrong
        # right: e.data = e.data * 0.999 + p.data * 0.001
