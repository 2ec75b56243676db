import torch
w = torch.randn(16, 4, requires_grad=True)
with torch.autocast("cpu", dtype=torch.float16):
    p = (torch.zeros(4, 16) @ w).softmax(-1) * 1e-8  # wrong
    # right: p = (torch.zeros(4, 16) @ w).log_softmax(-1) - 18.4
    loss = p.half().log().float().sum()  # wrong
    # right: loss = p.sum()
torch.amp.GradScaler("cpu").scale(loss).backward()
