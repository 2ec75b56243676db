import torch
def step_amp(model, opt, scaler, x):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(x).float().mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
def step_plain(model, opt, x):
    loss = model(x).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
def main(amp=True):
    m = torch.nn.Linear(4, 4)
    o, s = torch.optim.SGD(m.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=8.)
    for _ in range(2):
        o.zero_grad()
        step_amp(m, o, s, torch.randn(2, 4)) if amp else step_plain(m, o, torch.randn(2, 4))
main()
