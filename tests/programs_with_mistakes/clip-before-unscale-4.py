import torch
import torch.nn.utils as nnu
def optimise(scaler, opt, params, loss):
    scaler.scale(loss).backward()
    total = nnu.clip_grad_norm_(params, 1.0, foreach=False)
    scaler.step(opt)
    scaler.update()
    return total
def main():
    m = torch.nn.Linear(3, 3)
    o = torch.optim.SGD(m.parameters(), lr=1.)
    s = torch.amp.GradScaler("cpu", init_scale=128.)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.float16):
            l = m(torch.randn(2, 3)).float().mean()
        optimise(s, o, list(m.parameters()), l)
main()
