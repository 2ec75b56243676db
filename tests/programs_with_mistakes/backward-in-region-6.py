import torch
m = torch.nn.Linear(3, 3)
o = torch.optim.SGD(m.parameters(), lr=.1)
amp = torch.autocast("cpu", dtype=torch.bfloat16)
i = 0
while i < 2:
    amp.__enter__()
    l = m(torch.randn(2, 3)).float().mean()
    l.backward()
    amp.__exit__(None, None, None)
    o.step()
    i += 1
