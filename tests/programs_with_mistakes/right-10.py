import torch
m = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
@torch.no_grad()
def evaluate():
    m.eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = m(torch.randn(2, 4)).float().mean().item()
    m.train()
    return out
for _ in range(3):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = m(torch.randn(2, 4)).float().mean()
    loss.backward(); opt.step(); opt.zero_grad()
    evaluate()
