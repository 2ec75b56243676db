import argparse, torch
p = argparse.ArgumentParser()
p.add_argument("--no-amp", action="store_true")
args = p.parse_args([])
m = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", enabled=not args.no_amp, init_scale=4.)
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.float16, enabled=not args.no_amp):
        loss = m(torch.randn(2, 4)).float().mean()
    scaler.scale(loss).backward(); scaler.step(opt); scaler.update()
