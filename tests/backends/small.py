"""A PrivateUse1 backend with one lower precision and policies for three ops; LACKS names one to leave out."""

import os

import torch
from engine import Arrays, Backend, Tested

from ampcheck.spec.policies import closest, table

PROMISED = ("mm", "matmul", "exp")
HAS = [overload for overload in PROMISED if overload != os.environ.get("LACKS")]

BACKEND = Backend("small", Arrays(), fallback=True)
LISTED = table("AutocastCUDA", closest(torch.__version__))
BACKEND.register({overload: "fallthrough" for overload in LISTED if overload not in HAS}, dtypes=(torch.float16,))


class Small(Tested):
    """The backend as ampcheck sees it."""

    amp_dtypes = ("fp16",)


DEVICES = (Small(BACKEND, PROMISED),)
