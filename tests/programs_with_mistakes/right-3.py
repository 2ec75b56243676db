import torch
from torch import nn
G, D = nn.Linear(4, 8), nn.Linear(8, 1)
og, od = torch.optim.Adam(G.parameters(), 1e-4), torch.optim.Adam(D.parameters(), 1e-4)
sg, sd = torch.amp.GradScaler("cpu", init_scale=16.), torch.amp.GradScaler("cpu", init_scale=16.)
def amp():
    return torch.autocast("cpu", dtype=torch.float16)
for it in range(3):
    with amp():
        fake = G(torch.randn(5, 4))
        ld = nn.functional.softplus(D(fake.detach())).mean()
    od.zero_grad(); sd.scale(ld).backward(); sd.unscale_(od); nn.utils.clip_grad_norm_(D.parameters(), 1.0); sd.step(od); sd.update()
    with amp():
        lg = nn.functional.softplus(-D(fake)).mean()
    og.zero_grad(); sg.scale(lg).backward(); sg.step(og); sg.update()
