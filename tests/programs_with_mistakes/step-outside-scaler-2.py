import torch
class Base:
    def __init__(self, m):
        self.m = m
        self.optimizer = torch.optim.SGD(m.parameters(), lr=.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=32.)
    def run(self, xs):
        for x in xs:
            self.optimizer.zero_grad()
            self.backward(x)
            self.optimizer_step()
    def backward(self, x):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = self.m(x).float().mean()
        self.scaler.scale(loss).backward()
    def optimizer_step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()
class Mine(Base):
    def optimizer_step(self):
        self.optimizer.step()
Mine(torch.nn.Linear(3, 3)).run(torch.randn(3, 2, 3))
