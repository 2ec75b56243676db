import torch as t
class Cache(t.nn.Module):
    def lookup(self, x):
        dtype = t.get_autocast_gpu_dtype() if x.requires_grad else x.dtype  # wrong
        # right: dtype = t.get_autocast_dtype(x.device.type) if x.requires_grad else x.dtype
        return x.to(dtype)
Cache().lookup(t.randn(2))
