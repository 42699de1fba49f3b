"""Recommenders from their papers, sample by sample in float64.

They are the reference of recommender_oracle_test.cpp and recommender_bfloat16_test.cpp.

usage: recommender_oracle.py FOLDER. Reads each NAME.json (config, inputs) with NAME.safetensors (parameters as
"model.*", dense, embedded, mask, negative_mask, cotangent). Writes NAME.expected.safetensors:

- logits and auxiliary
- grad.embedded and grad.PARAMETER for the loss (logits * cotangent).sum() + auxiliary
- the same with the prefix "bf16.": each Linear except heads reads and returns bfloat16. Products and sums are exact,
  and each result is rounded once
- "without.WHAT" for each definition in WITHOUT: the output of a model that lacks it
"""

import itertools
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file

WITHOUT = {
    "din": ["unnormalised weights"],
    "dien": ["attention in the update gate", "negatives"],
    "can": ["order 2", "the item's own MLP"],
    "mmoe": ["a gate per task"],
}
HEADS = ("head", "wide", "attention.out", "auxiliary.out")


class Rounded(torch.autograd.Function):
    """The nearest bfloat16 number, and so for the gradient."""

    @staticmethod
    def forward(_, x):
        return x.bfloat16().double()

    @staticmethod
    def backward(_, gradient):
        return gradient.bfloat16().double()


class Model:
    def __init__(self, spec, parameters, without=None, bfloat16=False):
        self.config, self.inputs = spec["config"], spec["inputs"]
        self.bfloat16, self.without = bfloat16, without
        self.p = {
            name: Rounded.apply(p) if self.is_narrow(name) and not name.endswith("_slope") else p
            for name, p in parameters.items()
        }

    def is_narrow(self, name):
        return self.bfloat16 and not name.startswith(HEADS)

    def linear(self, name, x):
        bias = self.p.get(name + ".bias")
        if self.is_narrow(name):
            x = Rounded.apply(x)
        y = self.p[name + ".weight"] @ x + (0 if bias is None else bias)
        return Rounded.apply(y) if self.is_narrow(name) else y

    def tower(self, name, x):
        layer = 0
        while f"{name}.{layer}.weight" in self.p:
            x = self.linear(f"{name}.{layer}", x).relu()
            layer += 1
        return x

    def deep(self, *parts):
        return self.linear("head", self.tower("deep", torch.cat(parts)))

    def cut(self, row):
        """The parts of an embedded row, in their order."""
        dim, length = self.config["dim"], self.inputs["length"]
        sequences, pairs = len(self.inputs["targets"]), len(self.inputs["co_actions"])
        micro = self.config["micro"]
        size = sum((a + 1) * b for a, b in itertools.pairwise(micro))
        can = self.config["model"] == "can"
        negatives = length - 1 if self.config["model"] == "dien" and self.config["auxiliary_weight"] > 0 else 0
        shapes = [(self.inputs["sparse"], dim), (sequences, length, dim), (sequences, negatives, dim)]
        shapes += [(pairs, size), (pairs, length, micro[0])] if can else []
        parts = row.split([int(torch.tensor(shape).prod()) for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def candidate(self, features):
        return torch.cat([features[t] for t in self.inputs["targets"] if t >= 0])

    def __call__(self, dense, embedded, mask, negative_mask):
        forward = getattr(self, self.config["model"])
        found = [forward(*row) for row in zip(dense, embedded, mask > 0, negative_mask > 0, strict=True)]
        return torch.stack([logits for logits, _ in found]), sum(auxiliary for _, auxiliary in found)

    def din(self, dense, embedded, mask, _):
        """Zhou et al. 2018: equation 3, v_U = sum_j a(e_j, v_A) e_j, without a softmax over j (section 4.3)."""
        features, sequences, _ = self.cut(embedded)
        candidate = self.candidate(features)
        scores, events = [], []
        for t in range(len(mask)):
            if not mask[t]:
                continue
            event = sequences[:, t].flatten()
            same = torch.cat([sequences[s, t] for s, at in enumerate(self.inputs["targets"]) if at >= 0])
            x = torch.cat([candidate, event, candidate - same, candidate * same])
            for layer in range(len(self.config["attention"])):
                x = self.linear(f"attention.{layer}", x)
                x = torch.where(x > 0, x, self.p[f"attention.{layer}_slope"] * x)
            scores.append(self.linear("attention.out", x))
            events.append(event)
        interest = torch.zeros(sequences.shape[0] * sequences.shape[2], dtype=torch.float64)
        if events:
            weights = torch.cat(scores)
            if self.without == "unnormalised weights":
                weights = weights.softmax(0)
            interest = (weights[:, None] * torch.stack(events)).sum(0)
        return self.deep(dense, features.flatten(), interest), torch.zeros((), dtype=torch.float64)

    def gates(self, name, x, h):
        width = len(h)
        of_x, of_h = self.linear(name + ".input", x).split(width), self.linear(name + ".state", h).split(width)
        update, reset = torch.sigmoid(of_x[0] + of_h[0]), torch.sigmoid(of_x[1] + of_h[1])
        return update, torch.tanh(of_x[2] + reset * of_h[2])

    def dien(self, dense, embedded, mask, negative_mask):
        """Zhou et al. 2019: equations 1 to 4 (GRU), 5 (auxiliary loss), 6 (attention), 11 and 12 (AUGRU)."""
        features, sequences, negatives = self.cut(embedded)
        zero = torch.zeros(self.config["interest"], dtype=torch.float64)
        h, states = zero, []
        for t in range(int(mask.sum())):
            update, proposed = self.gates("extractor", sequences[:, t].flatten(), h)
            h = (1 - update) * h + update * proposed
            states.append(h)
        interest = zero
        if states:
            scores = torch.stack(states) @ self.linear("attention", self.candidate(features))
            attention = scores.exp() / scores.exp().sum()
            for a, state in zip(attention, states, strict=True):
                update, proposed = self.gates("evolution", state, interest)
                if self.without != "attention in the update gate":
                    update = a * update
                interest = (1 - update) * interest + update * proposed
        auxiliary = torch.zeros((), dtype=torch.float64)
        following = len(mask) - 1
        for t in range(1, len(states)):
            if not negative_mask[t - 1] or self.config["auxiliary_weight"] == 0:
                continue
            happened = self.tells(states[t - 1], sequences[:, t].flatten())
            drawn = self.tells(states[t - 1], negatives[:, t - 1].flatten())
            auxiliary = auxiliary - happened.log()
            if self.without != "negatives":
                auxiliary = auxiliary - (1 - drawn).log()
        auxiliary = self.config["auxiliary_weight"] * auxiliary / following
        logit = self.deep(dense, features.flatten(), sequences.sum(1).flatten(), interest)
        return logit, auxiliary

    def tells(self, state, event):
        x = torch.cat([state, event])
        for layer in range(len(self.config["auxiliary"])):
            x = torch.sigmoid(self.linear(f"auxiliary.{layer}", x))
        return torch.sigmoid(self.linear("auxiliary.out", x))[0]

    def can(self, dense, embedded, mask, _):
        """Bian et al. 2022, section 4. The item's parameters are the weights and biases of MLP_can. Its input is the
        powers of the user's parameters. Outputs of all layers are concatenated and summed over a sequence."""
        features, sequences, _, items, users = self.cut(embedded)
        widths, found = self.config["micro"], []
        for item, user in zip(items, users, strict=True):
            row = items[0] if self.without == "the item's own MLP" else item
            for order in range(1, self.config["orders"] + 1):
                power = 1 if self.without == "order 2" else order
                layers = [torch.zeros(width, dtype=torch.float64) for width in widths[1:]]
                for event in user[: int(mask.sum())]:
                    x, rest = event**power, row
                    for i, (a, b) in enumerate(itertools.pairwise(widths)):
                        weight, bias, rest = rest[: a * b], rest[a * b : (a + 1) * b], rest[(a + 1) * b :]
                        x = x @ weight.view(a, b) + bias
                        if i + 2 < len(widths):
                            x = torch.tanh(x)
                        layers[i] = layers[i] + x
                found += layers
        logit = self.deep(dense, features.flatten(), sequences.sum(1).flatten(), *found)
        return logit, torch.zeros((), dtype=torch.float64)

    def vectors(self, embedded):
        """The embeddings of an embedded row, and the weights of its wide part."""
        width = self.inputs["sparse"] * self.config["dim"]
        return embedded[:width].view(self.inputs["sparse"], -1), embedded[width:]

    def pairs(self, vectors):
        return torch.stack([vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)])

    def wide_deep(self, dense, embedded, *_):
        """Cheng et al. 2016: a linear model of all features beside the deep part."""
        vectors, wide = self.vectors(embedded)
        logit = self.deep(dense, vectors.flatten()) + wide.sum() + self.linear("wide", dense)
        return logit, torch.zeros((), dtype=torch.float64)

    def deepfm(self, dense, embedded, *_):
        """Guo et al. 2017: equations 1 and 2."""
        vectors, wide = self.vectors(embedded)
        logit = self.deep(dense, vectors.flatten()) + wide.sum() + self.pairs(vectors).sum()
        return logit, torch.zeros((), dtype=torch.float64)

    def dlrm(self, dense, embedded, *_):
        """Naumov et al. 2019, section 2.1.4."""
        bottom = self.tower("bottom", dense)
        logit = self.deep(bottom, self.pairs(torch.cat([bottom[None], self.vectors(embedded)[0]])))
        return logit, torch.zeros((), dtype=torch.float64)

    def dcnv2(self, dense, embedded, *_):
        """Wang et al. 2021: equations 1 and 2."""
        first = x = torch.cat([dense, embedded])
        for layer in range(self.config["cross_layers"]):
            down = self.linear(f"cross_down{layer}", x) if self.config["cross_rank"] else x
            x = first * self.linear(f"cross{layer}", down) + x
        if self.config["cross"] == "stacked":
            return self.deep(x), torch.zeros((), dtype=torch.float64)
        logit = self.linear("head", torch.cat([x, self.tower("deep", first)]))
        return logit, torch.zeros((), dtype=torch.float64)

    def mmoe(self, dense, embedded, *_):
        """Ma et al. 2018: equations 6 and 7."""
        x = torch.cat([dense, embedded])
        experts = torch.stack([self.tower(f"expert{i}", x) for i in range(self.config["experts"])])
        logits = []
        for k in range(self.inputs["tasks"]):
            scores = self.linear("gate0" if self.without == "a gate per task" else f"gate{k}", x)
            gate = scores.exp() / scores.exp().sum()
            logits.append(self.linear(f"head{k}", self.tower(f"task{k}", (gate[:, None] * experts).sum(0))))
        return torch.cat(logits), torch.zeros((), dtype=torch.float64)


def main(folder):
    for path in sorted(folder.glob("*.json")):
        spec = json.loads(path.read_text())
        tensors = {name: tensor.double() for name, tensor in load_file(path.with_suffix(".safetensors")).items()}
        cotangent = tensors.pop("cotangent")
        inputs = [tensors.pop(name) for name in ("dense", "embedded", "mask", "negative_mask")]
        parameters = {name.removeprefix("model."): tensor.requires_grad_() for name, tensor in tensors.items()}
        inputs[1].requires_grad_()
        expected = {}
        for prefix in ("", "bf16."):
            logits, auxiliary = Model(spec, parameters, bfloat16=prefix != "")(*inputs)
            named = {"embedded": inputs[1]} | parameters
            gradients = torch.autograd.grad((logits * cotangent).sum() + auxiliary, list(named.values()))
            expected |= {prefix + "logits": logits.detach(), prefix + "auxiliary": auxiliary.detach()}
            expected |= {f"{prefix}grad.{name}": g for name, g in zip(named, gradients, strict=True)}
        for what in WITHOUT.get(spec["config"]["model"], []):
            with torch.no_grad():
                found = Model(spec, parameters, without=what)(*inputs)
            expected["without." + what] = torch.cat([found[0].flatten(), found[1].reshape(1)])
        save_file({k: v.contiguous() for k, v in expected.items()}, path.with_suffix(".expected.safetensors"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(pathlib.Path(sys.argv[1]))
