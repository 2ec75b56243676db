import torch
torch.manual_seed(0)
w = torch.randn(16, 16, requires_grad=True)
with torch.autocast("cpu", dtype=torch.float16):
    y = (torch.randn(4, 16) * 10) @ w
e = y.exp()  # wrong
    # right: e = (y - y.amax(-1, keepdim=True)).exp()
torch.amp.GradScaler("cpu").scale((e / e.sum(-1, keepdim=True)).float().sum()).backward()
