import torch
model, average = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16).to(torch.bfloat16)
with torch.no_grad():
    for mine, theirs in zip(average.parameters(), model.parameters()):
        mine.lerp_(theirs.bfloat16(), 0.001)
