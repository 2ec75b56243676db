"""The compilers by name, with what each is. No compiler is imported: ids and reports need the names alone."""

COMPILERS = {
    "script": "torch.jit.script",
    "traced": "torch.jit.trace with autocast's cache off",
    "dynamo": 'torch.compile(backend="eager"): the graph that Dynamo captured, run as it is',
    "aot": 'torch.compile(backend="aot_eager"): forward and backward graphs of ATen ops, run as they are',
    "inductor": 'torch.compile(backend="inductor")',
    "export": "torch.export.export(strict=False).module()",
    "strict": "torch.export.export(strict=True).module()",
    "decomposed": "torch.export.export(strict=False).run_decompositions().module()",
    "packaged": "AOTInductor: torch.export.export(strict=False), compiled to a package of machine code and loaded",
    "jaxcompile": 'torch.compile(backend="jax"): forward and backward as XLA programs',
    "jaxjit": "ampcheck.jax_device.jit: the program whole as one XLA program",
}
"""No name occurs in another one, in an op, a scenario or a device token, so that `-k NAME` selects that compiler."""

ANYWHERE = ("script", "traced", "dynamo", "aot", "export", "strict", "decomposed")
"""Those that take programs on every device type that PyTorch's compilers know, fake tensors included."""
TRACEABLE = tuple(name for name in COMPILERS if name != "script")
"""Those that take a function as it is written; TorchScript reads its source."""
DYNAMO = ("dynamo", "aot", "inductor", "jaxcompile")
"""The backends of torch.compile, which may break a graph."""
GUARDED = (*DYNAMO, "jaxjit")
"""Those whose programs are compiled anew where the state that they are called in is another one."""
