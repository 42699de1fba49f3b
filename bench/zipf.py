"""Batches of ids from a Zipf distribution over permuted rows, for the benchmarks of embedding tables."""

import torch
from torch import Tensor

ZIPF = 1.1


def draw_batches(batches: int, tables: int, rows: int, samples: int) -> list[Tensor]:
    """Draws batches of ids, table by table. Each sample has one id per table."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.arange(1, rows + 1, dtype=torch.float64) ** -ZIPF
    upto = weight.cumsum(0) / weight.sum()
    permuted = [torch.randperm(rows, generator=generator) for _ in range(tables)]

    def ids(table: int) -> Tensor:
        rank = torch.searchsorted(upto, torch.rand(samples, dtype=torch.float64, generator=generator))
        return permuted[table][rank.clamp(max=rows - 1)]

    return [torch.cat([ids(table) for table in range(tables)]) for _ in range(batches)]


def distinct_rows(batches: list[Tensor], tables: int) -> float:
    """Returns the mean number of distinct rows of a batch, summed over all tables."""
    return sum(len(ids.unique()) for batch in batches for ids in batch.view(tables, -1)) / len(batches)
