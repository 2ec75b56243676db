"""The private names of torch that benchmarks need, besides those below. docs/private_api.md lists them."""

from collections.abc import Callable
from typing import Any

from ampcheck.spec.private_names import PrivateNames

NAMES = PrivateNames("ampcheck.bench", without="ampcheck bench does not work without them")

parse_key: Callable[[str], Any] = NAMES.take("torch._C._dispatch_key_parse")
# Dynamo takes seconds to import, so it is looked up when it is used.
aot_autograd = NAMES.call("torch._dynamo.backends.common.aot_autograd")
has_triton = NAMES.call("torch.utils._triton.has_triton")
dynamo_config = NAMES.module("torch._dynamo.config")
NAMES.check()
