"""Safetensors without a package of its own: a JSON header, then the bytes of each tensor."""

import hashlib
import json
import pathlib

import torch
from torch import Tensor

_DTYPES = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64}


def read_safetensors(path: pathlib.Path, sha256: str) -> dict[str, Tensor]:
    """Tensors by name. Raises ValueError when the file's sha256 is another."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ValueError(f"{path} is not the file that recommender.json was written with; export the run again")
    content = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    length = int.from_bytes(bytes(content[:8].tolist()), "little")
    header = json.loads(bytes(content[8 : 8 + length].tolist()))
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + at for at in entry["data_offsets"])
        tensors[name] = content[begin:end].clone().view(_DTYPES[entry["dtype"]]).view(entry["shape"])
    return tensors
