import torch
class StandardScaler:
    def fit(self, x):
        self.m, self.s = x.mean(0), x.std(0)
        return self
    def scale(self, x):
        return (x - self.m) / self.s
    def update(self): ...
scaler = StandardScaler().fit(torch.randn(10, 4))
m = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = scaler.scale(m(torch.randn(3, 4))).float().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    opt.step(); opt.zero_grad()
