import torch
m = torch.nn.Linear(4, 1)
opt = torch.optim.LBFGS(m.parameters(), max_iter=2)
x = torch.randn(8, 4)
def closure():
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = m(x)
    loss = out.float().pow(2).mean()
    loss.backward()
    return loss
for _ in range(2):
    opt.step(closure)
