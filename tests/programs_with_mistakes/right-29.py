# also: slow-fallback
import torch
class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = torch.nn.LSTM(8, 8), torch.nn.Linear(8, 4)
    def forward(self, x):
        return self.out(self.rnn(x)[0])
words = torch.randn(5, 2, 8).half()
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = Tagger()(words).float().logsumexp(-1).mean()
loss.backward()
