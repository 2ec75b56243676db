"""Plain torch for what a scenario asks of `amp`, and for what an op case is checked with.

The text between the quotes is pasted by people into reports: it is short, and its comments say what it stands for.
"""

from __future__ import annotations

from dataclasses import dataclass

CHECK = '''\
def check(what, got, want):
    print("ok  " if got == want else "FAIL", what, "| got", got, "| expected", want)'''

NAME_OF = '''\
def name_of(dtype):
    return str(dtype)[6:].replace("bfloat", "bf").replace("float", "fp")'''

# A line that starts with c is there where casts are asked for, one with k where kernels are.
_RECORDER = '''\
 |class Recorder(TorchDispatchMode):  # sits below autocast: sees what it casts, and what each kernel receives
 |    def __init__(self, *inputs):
 |        super().__init__()
k|        self.kernels = []
c|        self.casts, self.cast = [], {}
c|        self.inputs, self.source = inputs, {id(tensor): place for place, tensor in enumerate(inputs)}
 |        self.outputs, self.error, self.on = [], None, torch.is_autocast_enabled(TYPE)
 |
 |    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
 |        kwargs, has = kwargs or {}, torch._C._dispatch_has_kernel_for_dispatch_key
 |        known = func.namespace != "prim"
 |        if known and not has(func.name(), KEY) and has(func.name(), "CompositeImplicitAutograd"):
 |            torch.set_autocast_enabled(TYPE, self.on)  # not listed: taken apart, for autocast acts on its parts
 |            try:
 |                with self:
 |                    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
 |            finally:
 |                torch.set_autocast_enabled(TYPE, False)
 |        name = str(func).removeprefix("aten.").removesuffix(".default")
k|        if name != "_to_copy":
k|            given = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
k|            told = [name_of(x) for key, x in given.items() if key == "dtype" and isinstance(x, torch.dtype)]
k|            got = [x for x in tree_leaves(given) if isinstance(x, torch.Tensor)]
 |        X
 |        out = func(*args, **kwargs)
c|        if name == "_to_copy" and out.dtype != args[0].dtype:
c|            self.casts.append(SimpleNamespace(source=self.source.get(id(args[0]))))
c|            self.cast[id(out)] = self.casts[-1].source, out
c|        elif func.is_view and isinstance(out, torch.Tensor) and id(args[0]) in self.source:
c|            self.source[id(out)], self.inputs = self.source[id(args[0])], (*self.inputs, out)
 |        return out'''

_KERNEL = '''\
            leaves = [SimpleNamespace(got=name_of(x.dtype){source}) for x in got]
            self.kernels.append(
                SimpleNamespace(overload=name, leaves=leaves, dtype_kwarg=(told or [None])[0], listed=known and has(func.name(), KEY))
            )'''

OF = '''\
    def of(self, overload):
        return next((kernel for kernel in self.kernels if kernel.overload == overload), None)'''
