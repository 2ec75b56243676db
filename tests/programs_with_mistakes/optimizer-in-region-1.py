import torch
class Loop:
    def __init__(self):
        self.net = torch.nn.Linear(4, 4)
        self.solver = torch.optim.Adam(self.net.parameters())
        self.ctx = torch.amp.autocast("cpu", dtype=torch.bfloat16)
    def run(self):
        for _ in range(2):
            self.solver.zero_grad()
            loss = self.net(torch.randn(2, 4)).mean()
            loss.backward()
            with self.ctx:  # wrong
                self.solver.step()  # wrong
            # right: self.solver.step()
Loop().run()
