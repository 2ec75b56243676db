import torch as th
from torch import amp

def build():
    m = th.nn.Linear(6, 3)
    return m, th.optim.SGD(m.parameters(), lr=.01), amp.GradScaler("cpu", init_scale=64.)

def do_backward(s, l):
    s.scale(l).backward()

def main():
    m, o, s = build()
    for _ in range(3):
        with amp.autocast("cpu", dtype=th.float16):
            l = m(th.randn(2, 6)).sum()
        do_backward(s, l)
        o.step()  # wrong
        # right: s.step(o)
        # right: s.update()
        o.zero_grad()

main()
