import torch
def amp(fn):
    def inner(*a, **k):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return fn(*a, **k)
    return inner
class M:
    def __init__(self):
        self.net = torch.nn.Linear(3, 3)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1.)
    @amp
    def training_step(self, x):
        loss = self.net(x).float().mean()
        self.optimizer.zero_grad()
        loss.backward()
        return loss
    def loop(self):
        for _ in range(2):
            self.training_step(torch.randn(2, 3))
            self.optimizer.step()
M().loop()
