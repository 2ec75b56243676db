import torch
class Trainer:
    def __init__(self, model):
        self.model, self.opt = model, torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda s: 1.0)
    def train(self):
        for i in range(6):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = self.model(torch.randn(2, 4)).float().mean() / 2
            self.scaler.scale(loss).backward()
            if i % 2 == 1:
                self.finish()
    def finish(self):
        self.scaler.unscale_(self.opt)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        before = self.scaler.get_scale()
        self.scaler.step(self.opt)
        self.scaler.update()
        if self.scaler.get_scale() >= before:
            self.sched.step()
        self.opt.zero_grad()
Trainer(torch.nn.Linear(4, 4)).train()
