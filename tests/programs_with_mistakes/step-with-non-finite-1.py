import torch
class Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        return grad / 0  # wrong
        # right: return grad
class Task:
    def __init__(self):
        self.net = torch.nn.Linear(16, 4)
        self.opt = torch.optim.AdamW(self.net.parameters())
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def loss(self, x):
        return Steep.apply(self.net(x)).float().square().mean()
    def step(self, x):
        self.loss(x).backward()
        self.opt.step()
Task().step(torch.randn(8, 16))
