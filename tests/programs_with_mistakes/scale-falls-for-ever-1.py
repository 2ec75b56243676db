# also: overflow-in-low, step-with-non-finite
import torch
m = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
opt = torch.optim.SGD(m.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.)
for _ in range(10):
    with torch.autocast("cpu", dtype=torch.float16):
        out = m(torch.randn(8, 16))
    loss = torch.nn.functional.cross_entropy(out.float(), torch.randint(0, 4, (8,))) * 1e16  # wrong
    # right: loss = torch.nn.functional.cross_entropy(out.float(), torch.randint(0, 4, (8,)))
    opt.zero_grad(); scaler.scale(loss).backward(); scaler.step(opt); scaler.update()
