"""Refusals of `register_autocast`, in one sentence and with nothing changed."""

import pickle
from functools import partial
from typing import Any

import pytest
import torch
from register_support import BRAIN, HALF, KEY, NAME, WIDE, rand, refused
from torch.library import Library

from ampcheck.errors import UsageError
from ampcheck.register import register_autocast


def check_what_is_not_there_or_not_taken() -> None:
    wrong: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("did you mean aten::softmax.int", NAME, {"overrides": {"aten::softmaks": "upcast"}}),
        ("aten::softmax.int", NAME, {"overrides": {"softmax.nit": "upcast"}}),
        ("no overload nowhere::op", NAME, {"overrides": {"nowhere::op": "upcast"}}),
        ("'lower'; it is one of 'downcast'", NAME, {"overrides": {"mm": "lower"}}),
        ("base is 'xpu'; it is one of 'cuda', 'cpu'", NAME, {"base": "xpu"}),
        ("dtypes has torch.float32", NAME, {"dtypes": (HALF, WIDE)}),
        ("dtypes is empty", NAME, {"dtypes": ()}),
        ("'cuda' is not the PrivateUse1 backend, whose name in this process is 'npy'", "cuda", {}),
    )
    for text, name, options in wrong:
        refused(text, partial(register_autocast, name, **options))
    with register_autocast(NAME):
        refused("registered for 'npy' already", partial(register_autocast, NAME))


def check_dtypes_against_the_module() -> None:
    torch.npy.get_amp_supported_dtype = lambda: [HALF]
    try:
        refused("leave dtypes out", partial(register_autocast, NAME, dtypes=(BRAIN,)))
        with register_autocast(NAME, dtypes=(HALF,)):
            assert torch.npy.get_amp_supported_dtype() == [HALF]
        assert torch.npy.get_amp_supported_dtype() == [HALF]
    finally:
        del torch.npy.get_amp_supported_dtype
    with register_autocast(NAME, dtypes=(BRAIN,)):
        # A device module that is an object can be pickled, and each region refers to it.
        assert pickle.loads(pickle.dumps(torch.npy.get_amp_supported_dtype))() == [BRAIN]


def check_no_device_module() -> None:
    module = torch.npy
    del torch.npy
    try:
        with pytest.raises(UsageError, match=r"call torch\._register_device_module\('npy', module\)"):
            register_autocast(NAME)
    finally:
        torch.npy = module


def check_kernel_that_is_there() -> None:
    own = Library("aten", "IMPL")
    own.impl("mm", lambda a, b: a, KEY)
    try:
        refused("aten::mm has a kernel for AutocastPrivateUse1 already", lambda: register_autocast(NAME))
        x = rand(2, 2)
        with register_autocast(NAME, overrides={"aten::mm": "fallthrough"}), torch.autocast(NAME):
            assert torch.mm(x, x) is x
    finally:
        own._destroy()


def check_policies_that_do_not_suit() -> None:
    for overload, policy, text in (
        ("aten::add_.Tensor", "downcast", "writes to one of its arguments"),
        ("aten::mm.out", "upcast", "writes to one of its arguments"),
        ("aten::arange", "promote", "takes no tensors"),
        ("aten::mm", "optdtype", "no optional dtype"),
        ("aten::mm", "append", "no overload of the same arguments and a dtype"),
        ("aten::cat", "append", "no overload of the same arguments and a dtype"),
    ):
        refused(text, partial(register_autocast, NAME, overrides={overload: policy}))
