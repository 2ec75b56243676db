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

RECORDER = '''\
class Recorder(TorchDispatchMode):  # sits below autocast: sees its casts and what each kernel receives
    def __init__(self, *inputs):
        super().__init__()
        self.inputs, self.kernels, self.casts, self.outputs, self.error, self.cast = inputs, [], [], [], None, {}
        self.source = {id(tensor): place for place, tensor in enumerate(inputs)}
        self.on = torch.is_autocast_enabled(TYPE)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, has = kwargs or {}, torch._C._dispatch_has_kernel_for_dispatch_key
        listed = func.namespace != "prim" and has(func.name(), KEY)
        if func.namespace != "prim" and not listed and has(func.name(), "CompositeImplicitAutograd"):
            torch.set_autocast_enabled(TYPE, self.on)  # take it apart, for autocast acts on its parts
            try:
                with self:
                    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
            finally:
                torch.set_autocast_enabled(TYPE, False)
        name = str(func).removeprefix("aten.").removesuffix(".default")
        if name != "_to_copy":
            leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            places = [self.cast.get(id(x), (self.source.get(id(x)),))[0] for x in leaves]
            leaves = [SimpleNamespace(got=name_of(x.dtype), source=s) for x, s in zip(leaves, places)]
            dtype = (dict(zip((a.name for a in func._schema.arguments), args)) | kwargs).get("dtype")
            dtype = name_of(dtype) if isinstance(dtype, torch.dtype) else None
            self.kernels.append(SimpleNamespace(overload=name, leaves=leaves, dtype_kwarg=dtype, listed=listed))
        out = func(*args, **kwargs)
        if name == "_to_copy" and out.dtype != args[0].dtype:
            self.casts.append(SimpleNamespace(source=self.source.get(id(args[0]))))
            self.cast[id(out)] = self.casts[-1].source, out
        elif isinstance(out, torch.Tensor) and out is not args[0] and func.is_view and id(args[0]) in self.source:
            self.source[id(out)], self.inputs = self.source[id(args[0])], (*self.inputs, out)
        return out

    def of(self, overload):
        return next((kernel for kernel in self.kernels if kernel.overload == overload), None)

def observe(call, *inputs):
    seen = Recorder(*inputs)
    with torch._C._AutoDispatchBelowAutograd(), seen:
        try:
            seen.outputs = [x for x in tree_leaves(call()) if isinstance(x, torch.Tensor)]
        except Exception as error:
            seen.error = error
    return seen'''

LINES = '''\
def lines(seen):  # each op that autocast lists, the dtypes its kernel received, its dtype= and what was raised
    told = [[f"dtype={kernel.dtype_kwarg}"] * (kernel.dtype_kwarg is not None) for kernel in seen.kernels]
    ran = [" ".join([k.overload, *(x.got for x in k.leaves), *t]) for k, t in zip(seen.kernels, told) if k.listed]
    return ran + [f"raises {type(seen.error).__name__}"] * (seen.error is not None)'''

SAME = '''\
def same(a, b):  # the same bits; a NaN is the same as a NaN
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a != a) & (b != b)).all())'''

BY_HAND = '''\
class ByHand(Recorder):  # outside of a region: casts the arguments of each op as `todo` says
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).removeprefix("aten.").removesuffix(".default")
        if name in CALLERS:  # it calls listed ops inside its kernel
            with self:
                return func._op_dk(getattr(torch._C.DispatchKey, TYPE.upper()), *args, **(kwargs or {}))
        if not self.todo or self.todo[0].split()[0] != name:
            return super().__torch_dispatch__(func, types, args, kwargs)
        words = self.todo.pop(0).split()[1:]
        dtypes = iter([DTYPES.get(word) for word in words if "=" not in word])
        args, kwargs = tree_map(lambda x: x.to(next(dtypes)) if isinstance(x, torch.Tensor) else x, (args, kwargs or {}))
        given = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
        return func(**given, **{}) if words[-1:] != ["dtype=fp32"] else func(**given | {"dtype": torch.float32})'''


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the stand-in: its text, the other members and the blocks it needs, and its imports."""

    text: str
    needs: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
