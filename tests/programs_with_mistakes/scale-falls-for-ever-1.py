import torch
class Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        return grad / 0  # wrong
        # right: return grad
m = torch.nn.Linear(16, 4)
opt = torch.optim.SGD(m.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.)
for _ in range(10):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = Steep.apply(m(torch.randn(8, 16))).float().square().mean()
    opt.zero_grad(); scaler.scale(loss).backward(); scaler.step(opt); scaler.update()
