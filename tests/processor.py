"""What tests do about kernels that only some processors have."""

from collections.abc import Iterator

import pytest
import torch

from ampcheck.devices.cpu import lacks

NO_BF16_LSTM = lacks("mkldnn_rnn_layer", "bf16")
"""Whether oneDNN has no bfloat16 LSTM for this processor: `torch.nn.LSTM` raises in a region then."""


@pytest.fixture(autouse=True)
def lstm_that_runs() -> Iterator[None]:
    """Have `torch.nn.LSTM` run on PyTorch's own kernels where oneDNN has none for bfloat16."""
    # Not torch.backends.mkldnn.flags, which warns of a setting for GPUs as it restores it.
    before: bool = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(before and not NO_BF16_LSTM)
    yield
    torch._C._set_mkldnn_enabled(before)
