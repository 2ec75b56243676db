# pure float32 training, with amp switched off by a flag
import torch
use_amp = False
m = torch.nn.Linear(4, 4); o = torch.optim.SGD(m.parameters(), .1); s = torch.amp.GradScaler("cpu", enabled=use_amp)
for _ in range(4):
    with torch.autocast("cpu", dtype=torch.float16, enabled=use_amp): l = m(torch.randn(2, 4)).square().mean()
    o.zero_grad(); s.scale(l).backward(); torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0) if not use_amp else None; s.step(o); s.update()
