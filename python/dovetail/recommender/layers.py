"""The dense parts of recommenders. Parameters have the names of Dovetail's checkpoints.

Every part's forward takes an `Inputs` and gives log-odds, (samples, tasks).
"""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Inputs(NamedTuple):
    """B samples; F features that are no sequences, S sequences of at most L events."""

    dense: Tensor  # (B, D)
    features: Tensor  # (B, sum of the features' dims)
    wide: Tensor | None = None  # (B, F): a weight of each feature's ids
    events: Tensor | None = None  # (B, L, S, dim): zero where there is no event
    mask: Tensor | None = None  # (B, L) bool
    micro: list[Tensor] | None = None  # for each co-action (B, parameters)
    micro_inputs: list[Tensor] | None = None  # for each co-action (B, L, in)


class Shape(NamedTuple):
    dense: int
    dims: list[int]  # dim of each feature that is no sequence
    tasks: int
    targets: list[int]  # for each sequence: the feature with which it shares a table; -1: none
    co_actions: int


def candidate_of(x: Inputs, dims: list[int], targets: list[int]) -> Tensor:
    """(B, targets * dim): the embeddings of those features, side by side."""
    parts = x.features.split(dims, 1)
    return torch.cat([parts[target] for target in targets], 1)


def tower(width: int, widths: list[int]) -> tuple[nn.ModuleList, int]:
    return nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise([width, *widths])), ([width, *widths])[-1]


def climb(layers: nn.ModuleList, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x).relu()
    return x


class Interaction(nn.Module):
    """wide_deep, deepfm, dlrm and dcnv2."""

    def __init__(self, config: dict, shape: Shape):
        super().__init__()
        self.kind, self.stacked = config["model"], config["cross"] == "stacked"
        width, count = shape.dense + sum(shape.dims), len(shape.dims)
        self.each, pairs = (count, config["dim"]), (count + 1) * count // 2
        if self.kind == "dlrm":
            self.bottom, _ = tower(shape.dense, [*config["bottom"], config["dim"]])
        if self.kind == "wide_deep" and shape.dense > 0:
            self.wide = nn.Linear(shape.dense, 1)
        self.depth = config["cross_layers"] if self.kind == "dcnv2" else 0
        for i in range(self.depth):
            rank = config["cross_rank"]
            if rank:
                self.add_module(f"cross_down{i}", nn.Linear(width, rank, bias=False))
            self.add_module(f"cross{i}", nn.Linear(rank or width, width))
        self.deep, out = tower(config["dim"] + pairs if self.kind == "dlrm" else width, config["deep"])
        self.head = nn.Linear(out + (width if self.kind == "dcnv2" and not self.stacked else 0), 1)

    def cross(self, x: Tensor) -> Tensor:
        y = x
        for i in range(self.depth):
            down = getattr(self, f"cross_down{i}", None)
            y = x * getattr(self, f"cross{i}")(y if down is None else down(y)) + y
        return y

    def forward(self, x: Inputs) -> Tensor:
        if self.kind == "dlrm":
            bottom = climb(self.bottom, x.dense)
            vectors = torch.cat([bottom[:, None], x.features.unflatten(1, self.each)], 1)
            row, column = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1, device=vectors.device)
            products = (vectors @ vectors.mT)[:, row, column]
            return self.head(climb(self.deep, torch.cat([bottom, products], 1)))
        together = torch.cat([x.dense, x.features], 1)
        if self.kind == "dcnv2":
            crossed = self.cross(together)
            if self.stacked:
                return self.head(climb(self.deep, crossed))
            return self.head(torch.cat([crossed, climb(self.deep, together)], 1))
        logit = self.head(climb(self.deep, together)) + x.wide.sum(1, keepdim=True)
        if hasattr(self, "wide"):
            logit = logit + self.wide(x.dense)
        if self.kind == "deepfm":
            vectors = x.features.unflatten(1, self.each)
            pairs = vectors.sum(1).square() - vectors.square().sum(1)
            logit = logit + pairs.sum(1, keepdim=True) / 2
        return logit


class ActivationUnit(nn.Module):
    """DIN's: how much a candidate activates an event. (..., width) -> (...)."""

    def __init__(self, width: int, widths: list[int]):
        super().__init__()
        for i, (a, b) in enumerate(itertools.pairwise([width, *widths])):
            self.add_module(str(i), nn.Linear(a, b))
            self.register_parameter(f"{i}_slope", nn.Parameter(torch.empty(b)))
        self.depth, self.out = len(widths), nn.Linear([width, *widths][-1], 1)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(self.depth):
            x = getattr(self, str(i))(x)
            x = torch.where(x > 0, x, getattr(self, f"{i}_slope") * x)
        return self.out(x).squeeze(-1)


class Din(nn.Module):
    def __init__(self, config: dict, shape: Shape):
        super().__init__()
        dim = config["dim"]
        self.targets, self.dims = shape.targets, shape.dims
        event, candidate = len(shape.targets) * dim, sum(t >= 0 for t in shape.targets) * dim
        self.attention = ActivationUnit(event + 3 * candidate, config["attention"])
        self.deep, out = tower(shape.dense + sum(shape.dims) + event, config["deep"])
        self.head = nn.Linear(out, 1)

    def forward(self, x: Inputs) -> Tensor:
        shared = [s for s, target in enumerate(self.targets) if target >= 0]
        candidate = candidate_of(x, self.dims, [self.targets[s] for s in shared])[:, None]
        same = x.events[:, :, shared].flatten(2)
        events = x.events.flatten(2)
        parts = [candidate.expand_as(same), events, candidate - same, candidate * same]
        weights = self.attention(torch.cat(parts, 2)) * x.mask
        interest = (weights[..., None] * events).sum(1)
        return self.head(climb(self.deep, torch.cat([x.dense, x.features, interest], 1)))


class Recurrence(nn.Module):
    """A GRU, or with attention (B, L) an AUGRU: its last state (B, width), and all of them (B, L, width)."""

    def __init__(self, width: int, out: int):
        super().__init__()
        self.input, self.state = nn.Linear(width, 3 * out), nn.Linear(out, 3 * out, bias=False)

    def forward(self, x: Tensor, mask: Tensor, attention: Tensor | None = None) -> Tensor:
        projected = self.input(x)
        h, states = projected.new_zeros(x.shape[0], projected.shape[2] // 3), []
        for t in range(x.shape[1]):
            (xu, xr, xh), (hu, hr, hh) = projected[:, t].chunk(3, 1), self.state(h).chunk(3, 1)
            update = torch.sigmoid(xu + hu)
            if attention is not None:
                update = attention[:, t, None] * update
            proposed = torch.tanh(xh + torch.sigmoid(xr + hr) * hh)
            h = torch.where(mask[:, t, None], (1 - update) * h + update * proposed, h)
            states.append(h)
        return torch.stack(states, 1)


class Dien(nn.Module):
    def __init__(self, config: dict, shape: Shape):
        super().__init__()
        dim, width = config["dim"], config["interest"]
        self.targets, self.dims = [t for t in shape.targets if t >= 0], shape.dims
        event = len(shape.targets) * dim
        self.extractor, self.evolution = Recurrence(event, width), Recurrence(width, width)
        self.attention = nn.Linear(len(self.targets) * dim, width, bias=False)
        self.deep, out = tower(shape.dense + sum(shape.dims) + event + width, config["deep"])
        self.head = nn.Linear(out, 1)

    def forward(self, x: Inputs) -> Tensor:
        events = x.events.flatten(2)
        states = self.extractor(events, x.mask)
        candidate = self.attention(candidate_of(x, self.dims, self.targets))
        scores = (states @ candidate[..., None]).squeeze(2).masked_fill(~x.mask, float("-inf"))
        attention = scores.softmax(1).nan_to_num(0.0)  # a row without events has no scores
        interest = self.evolution(states, x.mask, attention)[:, -1]
        parts = [x.dense, x.features, events.sum(1), interest]
        return self.head(climb(self.deep, torch.cat(parts, 1)))


class Can(nn.Module):
    def __init__(self, config: dict, shape: Shape):
        super().__init__()
        self.micro, self.orders = config["micro"], config["orders"]
        event = len(shape.targets) * config["dim"]
        found = shape.co_actions * self.orders * sum(self.micro[1:])
        self.deep, out = tower(shape.dense + sum(shape.dims) + event + found, config["deep"])
        self.head = nn.Linear(out, 1)

    def co_action(self, row: Tensor, events: Tensor, mask: Tensor) -> Tensor:
        outputs = []
        for order in range(1, self.orders + 1):
            x, begin = events**order, 0
            for layer, (a, b) in enumerate(itertools.pairwise(self.micro)):
                weight = row[:, begin : begin + a * b].view(-1, a, b)
                bias = row[:, begin + a * b : begin + (a + 1) * b]
                begin += (a + 1) * b
                x = x @ weight + bias[:, None]
                if layer + 2 < len(self.micro):
                    x = x.tanh()
                outputs.append(x)
        return (torch.cat(outputs, 2) * mask[..., None]).sum(1)

    def forward(self, x: Inputs) -> Tensor:
        pairs = zip(x.micro, x.micro_inputs, strict=True)
        found = [self.co_action(row, events, x.mask) for row, events in pairs]
        parts = [x.dense, x.features, x.events.flatten(2).sum(1), *found]
        return self.head(climb(self.deep, torch.cat(parts, 1)))


class Mmoe(nn.Module):
    def __init__(self, config: dict, shape: Shape):
        super().__init__()
        width = shape.dense + sum(shape.dims)
        self.experts, self.tasks = config["experts"], shape.tasks
        for i in range(self.experts):
            layers, out = tower(width, config["expert"])
            self.add_module(f"expert{i}", layers)
        for k in range(self.tasks):
            self.add_module(f"gate{k}", nn.Linear(width, self.experts, bias=False))
            layers, top = tower(out, config["deep"])
            self.add_module(f"task{k}", layers)
            self.add_module(f"head{k}", nn.Linear(top, 1))

    def forward(self, x: Inputs) -> Tensor:
        together = torch.cat([x.dense, x.features], 1)
        experts = torch.stack([climb(getattr(self, f"expert{i}"), together) for i in range(self.experts)], 1)
        logits = []
        for k in range(self.tasks):
            gate = getattr(self, f"gate{k}")(together).softmax(1)
            mixed = (gate[..., None] * experts).sum(1)
            logits.append(getattr(self, f"head{k}")(climb(getattr(self, f"task{k}"), mixed)))
        return torch.cat(logits, 1)


def make_dense_part(config: dict, shape: Shape) -> nn.Module:
    parts = {"din": Din, "dien": Dien, "can": Can, "mmoe": Mmoe}
    return parts.get(config["model"], Interaction)(config, shape)
