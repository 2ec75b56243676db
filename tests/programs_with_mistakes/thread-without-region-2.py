from concurrent.futures import ThreadPoolExecutor
import torch
model = torch.nn.Linear(4, 4)
def forward(x):
    return model(x)  # wrong
    # right: with torch.autocast("cpu", dtype=torch.bfloat16):
        # right: return model(x)
with ThreadPoolExecutor(2) as pool:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outs = list(pool.map(forward, torch.randn(3, 2, 4)))
sum(o.float().sum() for o in outs).backward()
