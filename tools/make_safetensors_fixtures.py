"""Writes tests/data_files/safetensors/ with the `safetensors` package, the oracle for our reader and writer.

Run from the repository root: ./dev python tools/make_safetensors_fixtures.py
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data_files" / "safetensors"

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Values that every dtype holds exactly, so that the test can say them in one line.
    values = torch.tensor([[0, 1, 2], [3, 4, 5]])
    save_file({f"t.{name}": values.to(dtype) for name, dtype in DTYPES.items()}, FOLDER / "dtypes.safetensors")
    save_file(
        {
            "scalar": torch.tensor(2.5),
            "empty": torch.empty(3, 0, 2),
            'odd "name"\n\u00e9': torch.arange(7, dtype=torch.uint8),
            "b": torch.arange(5, dtype=torch.float64) / 4,
            "a": torch.arange(6, dtype=torch.float32).reshape(2, 1, 3),
        },
        FOLDER / "shapes.safetensors",
        metadata={"format": "pt"},
    )


if __name__ == "__main__":
    main()
