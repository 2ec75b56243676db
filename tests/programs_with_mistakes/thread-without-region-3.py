import torch, threading
class Replica(threading.Thread):
    def __init__(self, model, x): super().__init__(); self.model, self.x = model, x
    def run(self): self.out = self.model(self.x)
m = torch.nn.Linear(4, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    rs = [Replica(m, torch.randn(2, 4)) for _ in range(2)]
    for r in rs: r.start()
    for r in rs: r.join()
