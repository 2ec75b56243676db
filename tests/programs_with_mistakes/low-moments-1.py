# also: low-parameters
import torch
class Fit:
    def __init__(self, model):
        self.model = model.bfloat16()  # wrong
        # right: self.model = model
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-5)
    def step(self, x, y):
        torch.nn.functional.cross_entropy(self.model(x.bfloat16()).float(), y).backward()  # wrong
        # right: with torch.autocast("cpu", dtype=torch.bfloat16):
            # right: loss = torch.nn.functional.cross_entropy(self.model(x), y)
        # right: loss.backward()
        self.opt.step()
Fit(torch.nn.Linear(16, 4)).step(torch.randn(8, 16), torch.randint(0, 4, (8,)))
