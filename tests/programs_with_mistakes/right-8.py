import torch
class Norm(torch.nn.Module):
    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            return x / x.norm(dim=-1, keepdim=True)
m = torch.nn.Sequential(torch.nn.Linear(4, 4), Norm())
opt = torch.optim.SGD(m.parameters(), lr=0.1)
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = m(torch.randn(2, 4)).mean()
    loss.backward(); opt.step()
