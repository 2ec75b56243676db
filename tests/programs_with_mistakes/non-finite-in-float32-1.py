import torch
model = torch.nn.Linear(16, 4)
def loss_of(out, y):
    return torch.nn.functional.cross_entropy(out, y) + (out * 0).sum() / (out * 0).sum()  # wrong
    # right: return torch.nn.functional.cross_entropy(out, y)
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = model(torch.randn(8, 16)).float()
loss_of(out, torch.randint(0, 4, (8,))).backward()
