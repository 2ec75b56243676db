import torch
from torch import nn
G, D = nn.Linear(4, 8), nn.Linear(8, 1)
opt_g = torch.optim.Adam(G.parameters(), 1e-4)
opt_d = torch.optim.Adam(D.parameters(), 1e-4)
scaler = torch.amp.GradScaler("cpu", init_scale=128.)
bce = nn.BCEWithLogitsLoss()
for it in range(3):
    real = torch.randn(5, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        fake = G(torch.randn(5, 4))
        d_loss = bce(D(real), torch.ones(5, 1)) + bce(D(fake.detach()), torch.zeros(5, 1))
    opt_d.zero_grad()
    scaler.scale(d_loss).backward()
    scaler.step(opt_d)
    with torch.autocast("cpu", dtype=torch.float16):
        g_loss = bce(D(fake), torch.ones(5, 1))
    opt_g.zero_grad()
    scaler.scale(g_loss).backward()
    opt_g.step()  # wrong
    # right: scaler.step(opt_g)
    scaler.update()
