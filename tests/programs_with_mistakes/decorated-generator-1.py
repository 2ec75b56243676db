import torch
model = torch.nn.Linear(4, 4)
@torch.no_grad()
@torch.autocast(device_type="cpu", dtype=torch.bfloat16)
def predictions(batches):
    for b in batches:
        yield model(b)
list(predictions(torch.randn(3, 2, 4)))
