import torch
from torch.nn.utils import clip_grad_norm_
device = "cuda" if torch.cuda.is_available() else "cpu"
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).to(device)
state = {"model": net, "optim": torch.optim.AdamW(net.parameters(), lr=1e-3), "scaler": torch.amp.GradScaler(device, init_scale=1024)}
for _ in range(3):
    x, y = torch.randn(8, 16, device=device), torch.randint(0, 4, (8,), device=device)
    with torch.autocast(device, torch.float16):
        loss = torch.nn.functional.cross_entropy(state["model"](x), y)
    state["scaler"].scale(loss).backward()
    # right: state["scaler"].unscale_(state["optim"])
    clip_grad_norm_(net.parameters(), 1.0)
    state["scaler"].step(state["optim"])
    state["scaler"].update()
    state["optim"].zero_grad()
