"""The specification's dtype names as `torch.dtype`, both ways."""

import torch

DTYPES: dict[str, torch.dtype] = {
    "fp8e4m3": torch.float8_e4m3fn,
    "fp8e5m2": torch.float8_e5m2,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "complex32": torch.complex32,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "bool": torch.bool,
}


def name_of(dtype: torch.dtype) -> str:
    """Return the specification's name of a dtype; torch's own where the specification has none."""
    name = str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp")
    return name.replace("8_", "8").removesuffix("fn")
