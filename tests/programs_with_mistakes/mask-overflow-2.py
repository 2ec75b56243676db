import torch
w = torch.randn(16, 16, requires_grad=True)
bias = torch.full((4, 4), torch.finfo(torch.float32).min)  # wrong
# right: mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
with torch.autocast("cpu", dtype=torch.float16):
    scores = (torch.randn(4, 16) @ w) @ torch.randn(16, 4)
    loss = torch.softmax(scores + bias.to(scores.dtype), -1).float().sum()  # wrong
    # right: scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
    # right: loss = torch.softmax(scores, -1).float().sum()
torch.amp.GradScaler("cpu").scale(loss).backward()
