"""The private names of torch that inputs and PyTorch's own test lists need. docs/private_api.md lists them."""

from typing import TYPE_CHECKING

from ampcheck.spec.private_names import PrivateNames

NAMES = PrivateNames("ampcheck.samples", without="no case can be run without them")

if TYPE_CHECKING:
    from torch._C import ScriptFunction as ScriptFunction
    from torch._C import ScriptMethod as ScriptMethod
    from torch._C import _get_privateuse1_backend_name
    from torch.utils import _pytree
    from torch.utils._python_dispatch import _disable_current_modes

    backend_name = _get_privateuse1_backend_name
    disable_current_modes = _disable_current_modes
    pytree = _pytree
else:
    ScriptFunction = NAMES.take("torch._C.ScriptFunction")
    ScriptMethod = NAMES.take("torch._C.ScriptMethod")
    backend_name = NAMES.take("torch._C._get_privateuse1_backend_name")
    disable_current_modes = NAMES.take("torch.utils._python_dispatch._disable_current_modes")
    pytree = NAMES.take("torch.utils._pytree")

TESTING: str = NAMES.package("torch.testing._internal")
NAMES.check()
