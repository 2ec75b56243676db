import argparse
import torch
p = argparse.ArgumentParser()
p.add_argument("--no-amp", action="store_true")
a = p.parse_args([])
m = torch.nn.Linear(3, 3)
with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.no_amp):
    m(torch.randn(2, 3))
