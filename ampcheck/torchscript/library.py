"""The operators of rewritten programs: the library built with this package, else the same ones in Python.

The library's file name holds the torch version it was built for. It is not loaded into another one, whose classes may
lie in memory in another way.
"""

import warnings
from pathlib import Path

import torch

from ampcheck.torchscript import fallback
from ampcheck.torchscript.torch_private import schemas_of

FOLDER = Path(__file__).parent
_PREFIX = "_operators-torch"


def load(folder: Path = FOLDER) -> str:
    """Register the operators in this process and return, in a sentence, which ones they are.

    Warns where the library was built for another torch.
    """
    wanted = folder / f"{_PREFIX}{torch.__version__}.so"
    if wanted.exists():
        torch.ops.load_library(wanted)
        return f"the library of operators built for torch {torch.__version__}"
    others = sorted(path.stem.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*.so"))
    fallback.register()
    if others:
        why = f"the library was built for torch {', '.join(others)} and this is torch {torch.__version__}"
        warnings.warn(f"{why}; ampcheck.torchscript uses operators written in Python", stacklevel=2)
    else:
        why = "no library was built when ampcheck was installed, for want of a C++ compiler or of torch"
    return f"operators written in Python: {why}"


def variadic() -> bool:
    """Return whether the operators take any number and mixture of values, as those of the library do."""
    return any("(...)" in str(schema) for schema in schemas_of("amp::autocast_promote"))
