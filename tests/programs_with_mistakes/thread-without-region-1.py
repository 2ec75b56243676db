import torch, threading
class Parallel:
    def __init__(s): s.parts = [torch.nn.Linear(4, 4) for _ in range(2)]; s.out = [None] * 2
    def _run(s, i, x): s.out[i] = s.parts[i](x)
    def __call__(s, x):
        ts = [threading.Thread(target=s._run, args=(i, x)) for i in range(2)]
        for t in ts: t.start()
        for t in ts: t.join()
        return sum(s.out)
p = Parallel()
with torch.autocast("cpu", dtype=torch.bfloat16): p(torch.randn(2, 4))
