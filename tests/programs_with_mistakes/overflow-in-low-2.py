import torch
torch.manual_seed(0)
w = torch.randn(16, 16, requires_grad=True)
with torch.autocast("cpu", dtype=torch.float16):
    y = (torch.randn(4, 16) * 300) @ w  # wrong
    # right: y = torch.randn(4, 16) @ w
    loss = (y.half() * y.half()).float().mean()
torch.amp.GradScaler("cpu").scale(loss).backward()
