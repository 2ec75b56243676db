import torch
model = torch.nn.Linear(16, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = model(torch.randn(8, 16)).float()
out.register_hook(lambda grad: grad / 0)  # wrong
out.mean().backward()
opt.step()
