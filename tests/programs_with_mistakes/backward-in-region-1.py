# ExitStack, device str in variable, methods
import contextlib, torch
class Runner:
    def __init__(self, model, device_name):
        self.model, self.device_name = model, device_name
        self.optim = torch.optim.SGD(model.parameters(), 0.1)
    def contexts(self, stack):
        stack.enter_context(torch.autocast(self.device_name, dtype=torch.bfloat16))
    def step(self, x, y):
        with contextlib.ExitStack() as stack:
            self.contexts(stack)
            loss = torch.nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
        self.optim.step(); self.optim.zero_grad()
r = Runner(torch.nn.Linear(4, 3), "cpu")
for _ in range(3): r.step(torch.randn(6, 4), torch.randint(3, (6,)))
