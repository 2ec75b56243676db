# config dataclass with dtype as string
import torch
from dataclasses import dataclass
@dataclass
class Cfg:
    dtype: str = "float16"
    device: str = "cpu"
    lr: float = 1e-3
def train(cfg: Cfg):
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    opt = torch.optim.AdamW(model.parameters(), cfg.lr)
    ctx = torch.autocast(cfg.device, dtype=getattr(torch, cfg.dtype))
    for _ in range(3):
        with ctx:
            y = model(torch.randn(2, 5, 16))
            loss = (y - 1).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
train(Cfg())
