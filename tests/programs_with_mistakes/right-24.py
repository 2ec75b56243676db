import torch
class Precision:
    def __init__(self, kind):
        self.kind = kind
        self.scaler = torch.amp.GradScaler("cpu", enabled=kind == "fp16", init_scale=4.)
    def forward_context(self):
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.kind)
        return torch.autocast("cpu", dtype=dtype, enabled=dtype is not None)
    def backward(self, loss):
        self.scaler.scale(loss).backward()
    def clip(self, optimizer, params):
        self.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
    def step(self, optimizer):
        self.scaler.step(optimizer)
        self.scaler.update()
p = Precision("fp16")
m = torch.nn.Linear(3, 3)
o = torch.optim.SGD(m.parameters(), lr=.1)
for x in torch.randn(3, 2, 3):
    o.zero_grad()
    with p.forward_context():
        l = m(x).float().mean()
    p.backward(l)
    p.clip(o, m.parameters())
    p.step(o)
