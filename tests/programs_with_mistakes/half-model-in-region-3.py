import torch
def prepare(model):
    model.bfloat16()
    return model
model = prepare(torch.nn.Linear(3, 3))
o = torch.optim.SGD(model.parameters(), lr=.1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = model(torch.randn(2, 3)).float().mean()
loss.backward()
o.step()
