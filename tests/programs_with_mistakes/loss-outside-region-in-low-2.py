import torch
import torch.nn.functional as F
class Learner:
    def __init__(self, net):
        self.net, self.opt = net, torch.optim.Adam(net.parameters())
    def step(self, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            prediction = self.net(x)
        loss = F.cross_entropy(prediction, y)  # wrong
        # right: loss = F.cross_entropy(prediction.float(), y)
        loss.backward()
        self.opt.step()
Learner(torch.nn.Linear(4, 3)).step(torch.randn(2, 4), torch.tensor([0, 1]))
