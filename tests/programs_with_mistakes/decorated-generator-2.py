import asyncio
import torch
from torch import autocast
model = torch.nn.Linear(4, 4)
class Server:
    @autocast("cpu", dtype=torch.bfloat16)  # wrong
    async def answer(self, x):
        await asyncio.sleep(0)
        return model(x)  # wrong
        # right: with autocast("cpu", dtype=torch.bfloat16):
            # right: return model(x)
asyncio.run(Server().answer(torch.randn(2, 4)))
