import torch
from contextlib import contextmanager
@contextmanager
def mixed():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield
model = torch.nn.Linear(4, 4)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    with mixed():
        loss = model(torch.randn(2, 4)).float().mean()
    loss.backward()
    with mixed():  # wrong
        optimiser.step()  # wrong
    # right: optimiser.step()
        optimiser.zero_grad()  # wrong
    # right: optimiser.zero_grad()
