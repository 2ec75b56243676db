"""Names of torch that it does not promise, as `ampcheck.spec` needs them."""

from ampcheck.spec.private_names import PrivateNames

NAMES = PrivateNames("ampcheck.spec", without="a build's autocast kernels cannot be listed")

registrations = NAMES.call("torch._C._dispatch_get_registrations_for_dispatch_key")

NAMES.check()

_ATEN = "aten::"


def registered(key: str) -> frozenset[str]:
    """Return the aten overloads that this build registers under a dispatch key, without the namespace."""
    names: list[str] = registrations(key)
    return frozenset(name.removeprefix(_ATEN) for name in names if name.startswith(_ATEN))
