# dict config, kwargs splat
import torch
CONFIG = {"amp": {"device_type": "cpu", "dtype": torch.float16}, "lr": 0.1}
def main(cfg):
    model = torch.nn.Bilinear(3, 3, 2); opt = torch.optim.SGD(model.parameters(), lr=cfg["lr"])
    for _ in range(3):
        with torch.amp.autocast(**cfg["amp"]):
            loss = model(torch.randn(2, 3), torch.randn(2, 3)).square().mean() + (model.weight @ model.weight.transpose(1, 2)).mean()
        opt.zero_grad(); loss.backward(); opt.step()
main(CONFIG)
