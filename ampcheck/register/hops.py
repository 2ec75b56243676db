"""Autocast of higher-order operators: `flex_attention`, `cond`, `wrap` and their like.

They have no dispatcher entry and so do not see the backend fallback: each one keeps, in Python, a table of kernels and
a set of keys it does not fall through. PyTorch takes the CPU's, CUDA's and XPU's autocast keys out of that set for
every new operator (`HigherOrderOperator.__init__` in torch/_ops.py) and leaves AutocastPrivateUse1 in, so that all of
them raise inside of a region.
"""

from ampcheck.register.kernels import KEY, Kernel
from ampcheck.register.torch_private import (
    DispatchKey,
    DispatchKeySet,
    ExcludeDispatchKeyGuard,
    HigherOrderOperator,
    fallthrough_keys,
    higher_order_ops,
)

_MASK = DispatchKeySet(KEY)


class HigherOrder:
    """The registration on every higher-order operator, those defined later included."""

    def __init__(self, base: DispatchKey) -> None:
        """Take over the kernels of the dispatch key `base`; a kernel that is there already stays."""
        self._registered: list[HigherOrderOperator] = []
        self._defaults = fallthrough_keys
        self._added = KEY not in self._defaults
        # Those that fall through already are not to be changed back at the end.
        self._before = {id(op) for op in _all() if not op.non_fallthrough_keys.has(KEY)}
        if self._added:
            self._defaults.append(KEY)
        for op in _all():
            if KEY in op.py_kernels:
                self._before.add(id(op))
            elif base in op.py_kernels:
                op.py_impl(KEY)(_kernel(op.py_kernels[base]))
                self._registered.append(op)
            else:
                op.fallthrough(KEY)

    def unregister(self) -> None:
        """Put every operator back."""
        for op in self._registered:
            del op.py_kernels[KEY]
            op._dispatch_cache.clear()
        if not self._added:
            return
        self._defaults.remove(KEY)
        for op in _all():
            if id(op) not in self._before:
                op.non_fallthrough_keys = op.non_fallthrough_keys.add(KEY)


def _all() -> list[HigherOrderOperator]:
    return list(higher_order_ops.values())


def _kernel(base: Kernel) -> Kernel:
    """Return the base device's kernel, run with this device's key excluded.

    It asks the query's own device for its dtype, and then calls the operator again with its own key excluded.
    """

    def kernel(*args: object, **kwargs: object) -> object:
        with ExcludeDispatchKeyGuard(_MASK):
            return base(*args, **kwargs)

    return kernel
