import contextlib
import torch
model = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        loss = model(torch.randn(2, 4)).float().mean()
        loss.backward()  # wrong
    # right: loss.backward()
    opt.step()
    opt.zero_grad()
