import torch
model = torch.nn.Linear(16, 16)
average = [p.detach().bfloat16().clone() for p in model.parameters()]  # wrong
# right: average = [p.detach().clone() for p in model.parameters()]
with torch.no_grad():
    for mine, theirs in zip(average, model.parameters()):
        mine.mul_(0.999).add_(theirs.bfloat16(), alpha=0.001)  # wrong
        # right: mine.mul_(0.999).add_(theirs, alpha=0.001)
