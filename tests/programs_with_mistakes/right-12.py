import threading, torch
m = torch.nn.Linear(4, 4)
outs = []
def work(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outs.append(m(x))
ts = [threading.Thread(target=work, args=(torch.randn(2, 4),)) for _ in range(2)]
[t.start() for t in ts]; [t.join() for t in ts]
sum(o.float().sum() for o in outs).backward()
