"""Puts what the two modes of a trace see together: which kernel and which cast belong to which call, and why."""

from __future__ import annotations

from collections.abc import Callable
from bisect import bisect_right
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from collections.abc import Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.observe import overload_name, tensors
from ampcheck.spec.casting import Leaf, expect
from ampcheck.spec.dtypes import is_floating
from ampcheck.torch_dtypes import name_of
from ampcheck.tracing import names
from ampcheck.tracing.records import CastRecord, OpRecord, Region
from ampcheck.tracing.sources import Sources
