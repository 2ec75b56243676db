import threading
import torch
model = torch.nn.Linear(4, 4)
results = []
def work(x):
    results.append(model(x))  # wrong
    # right: with torch.autocast("cpu", dtype=torch.bfloat16):
        # right: results.append(model(x))
with torch.autocast("cpu", dtype=torch.bfloat16):
    threads = [threading.Thread(target=work, args=(torch.randn(2, 4),)) for _ in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
sum(results).float().sum().backward()
