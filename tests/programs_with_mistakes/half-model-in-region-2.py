import torch
class T:
    def __init__(self, device):
        self.net = torch.nn.Linear(4, 4)
        self.net.to(device, dtype=torch.bfloat16)  # wrong
        # right: self.net.to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def step(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            loss = self.net(x).float().mean()
        loss.backward()
        self.opt.step()
T("cpu").step(torch.randn(2, 4))
