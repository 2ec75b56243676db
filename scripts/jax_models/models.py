"""The models: small configurations with random weights, what they are fed, and their losses.

None has dropout or another source of random numbers in its step, for those of the jax device are not the CPU's.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ampcheck.bench.workloads.steps import TransformerBlock

Batch = Mapping[str, torch.Tensor]

_WORDS, _LENGTH, _ROWS, _CLASSES = 64, 16, 4, 8
FP32_BOUND = 1e-5
"""How far float32 losses may be from the CPU's, for a model that names no other bound: 80 roundings of a loss of 1."""


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A model to train.

    `kind`: what it is an example of. `library`: the package that has it, "torch" for those of this file. `make` is
    called after the seed was set, `batch` too, once a step. `loss` gets the module, or what was compiled of it, and a
    batch on its device. `fp32_bound`: how far float32 losses may be from the CPU's.
    """

    name: str
    kind: str
    library: str
    make: Callable[[], nn.Module]
    batch: Callable[[], dict[str, torch.Tensor]]
    loss: Callable[[Callable[..., Any], Batch], torch.Tensor]
    optimizer: Callable[..., torch.optim.Optimizer]
    fp32_bound: float


class TiedDecoder(nn.Module):
    """GPT-2 in small: pre-norm blocks with causal attention; the head's weight is the embedding's."""

    def __init__(self, width: int = 32, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(_WORDS, width), nn.Embedding(_LENGTH, width)
        nn.init.normal_(self.words.weight, std=0.1)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, causal=True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, _WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next words: (rows, length, words)."""
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        out: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return out


class SpeechTagger(nn.Module):
    """Two bidirectional layers of LSTM, and the log probabilities of classes at each moment."""

    def __init__(self, width: int = 12, hidden: int = 16) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, num_layers=2, bidirectional=True)
        self.head = nn.Linear(2 * hidden, _CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return log probabilities, (length, rows, classes), for (length, rows, width)."""
        return F.log_softmax(self.head(self.lstm(x)[0]), -1)


def _words() -> torch.Tensor:
    return torch.randint(_WORDS, (_ROWS, _LENGTH))


def _text() -> dict[str, torch.Tensor]:
    """Words whose successor is predicted; the library shifts them."""
    words = _words()
    return {"input_ids": words, "labels": words}


def _masked() -> dict[str, torch.Tensor]:
    """Words of which some are padding, all to be told."""
    words, mask = _words(), torch.ones(_ROWS, _LENGTH, dtype=torch.int64)
    mask[-1, _LENGTH // 2 :] = 0
    return {"input_ids": words, "attention_mask": mask, "labels": torch.where(mask > 0, words, -100)}


def _images(side: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(_ROWS, 3, side, side), "labels": torch.randint(_CLASSES, (_ROWS,))}


def _series() -> dict[str, torch.Tensor]:
    return {
        "series": torch.randn(_LENGTH, _ROWS, 12),
        "labels": torch.randint(1, _CLASSES, (_ROWS, 5)),
        "lengths": torch.tensor([_LENGTH, _LENGTH, 12, 10]),
        "label_lengths": torch.tensor([5, 4, 3, 2]),
    }


def _noised() -> dict[str, torch.Tensor]:
    return {
        "sample": torch.randn(2, 3, 16, 16),
        "noise": torch.randn(2, 3, 16, 16),
        "timestep": torch.randint(1000, (2,)),
    }


def _next_word(call: Callable[..., Any], batch: Batch) -> torch.Tensor:
    logits = call(batch["input_ids"])[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())


def _classes(call: Callable[..., Any], batch: Batch) -> torch.Tensor:
    return F.cross_entropy(call(batch["pixel_values"]), batch["labels"])


def _alignment(call: Callable[..., Any], batch: Batch) -> torch.Tensor:
    return F.ctc_loss(call(batch["series"]), batch["labels"], batch["lengths"], batch["label_lengths"])


def _denoising(call: Callable[..., Any], batch: Batch) -> torch.Tensor:
    """How far the predicted noise is from the noise that was added, by a cosine schedule."""
    angle = (batch["timestep"] / 1000 * torch.pi / 2)[:, None, None, None]
    noised = angle.cos() * batch["sample"] + angle.sin() * batch["noise"]
    return F.mse_loss(call(noised, batch["timestep"]).sample, batch["noise"])


_BATCHES: Mapping[str, Callable[[], dict[str, torch.Tensor]]] = {
    "text": _text,
    "masked": _masked,
    "translation": lambda: {"input_ids": _words(), "labels": _words()},
    "speech": lambda: {"input_values": torch.randn(2, 800), "labels": torch.randint(1, _CLASSES, (2, 4))},
    "series": _series,
    "images": partial(_images, 32),
    "large images": partial(_images, 64),
    "noised": _noised,
}
_LOSSES = {"next word": _next_word, "classes": _classes, "alignment": _alignment, "denoising": _denoising}
_OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": partial(torch.optim.AdamW, lr=1e-3),
    "SGD": partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
}
_SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def _made(about: Mapping[str, Any]) -> nn.Module:
    """Make a model as `models.toml` describes it."""
    settings = {**(_SIZES if about.get("of_our_sizes") else {}), **about.get("settings", {})}
    settings |= dict.fromkeys(about.get("without_dropout", ()), 0.0)
    library = import_module(__name__ if about["library"] == "torch" else about["library"])
    make = attrgetter(about["head"])(library)
    made: nn.Module = make(getattr(library, about["config"])(**settings)) if "config" in about else make(**settings)
    return made.train()


def _described(name: str, about: Mapping[str, Any]) -> TrainedModel:
    return TrainedModel(
        name,
        about["kind"],
        about["library"],
        make=partial(_made, about),
        batch=_BATCHES[about["batch"]],
        loss=_LOSSES[about["loss"]] if "loss" in about else lambda call, batch: call(**batch).loss,
        optimizer=_OPTIMIZERS[about.get("optimizer", "AdamW")],
        fp32_bound=about.get("fp32_bound", FP32_BOUND),
    )


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MODELS: Mapping[str, TrainedModel] = {name: _described(name, about) for name, about in _TABLE.items()}
"""The models by name, in the order in which they are shown."""
