import torch
model = torch.nn.Linear(4, 4)
@torch.no_grad()
@torch.autocast(device_type="cpu", dtype=torch.bfloat16)  # wrong
def predictions(batches):
    for b in batches:
        yield model(b)  # wrong
        # right: with torch.autocast("cpu", dtype=torch.bfloat16):
            # right: prediction = model(b)
        # right: yield prediction
list(predictions(torch.randn(2, 2, 4)))
