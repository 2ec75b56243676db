import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
args = parser.parse_args([])
model = torch.nn.Linear(2, 2)
with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not args.amp):  # wrong
# right: with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.amp):
    model(torch.randn(2, 2))
