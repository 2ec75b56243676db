import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
with torch.autocast("cpu", dtype=torch.float16):
    x = torch.randn(8, 16) * 400  # wrong
    # right: x = torch.randn(8, 16)
    scores = model(x) @ model(x).t()
    loss = (scores.softmax(-1) @ model(x)).sum()
torch.amp.GradScaler("cpu").scale(loss).backward()
