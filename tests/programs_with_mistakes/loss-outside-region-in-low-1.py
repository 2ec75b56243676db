import torch
import torch.nn.functional as F
model = torch.nn.Linear(8, 5)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = torch.nn.CrossEntropyLoss()
for _ in range(2):
    x, y = torch.randn(4, 8), torch.randint(0, 5, (4,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x)
    loss = criterion(logits, y)  # wrong
        # right: loss = criterion(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
