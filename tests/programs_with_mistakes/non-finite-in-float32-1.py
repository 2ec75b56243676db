import torch
model = torch.nn.Linear(16, 4)
x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
x[0, 0] = torch.nan  # wrong
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = torch.nn.functional.cross_entropy(model(x), y)
loss.backward()
