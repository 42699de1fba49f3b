"""Sides of `./dev bench moe`: the same mixture in Dovetail, in DeepSpeed, in torchtitan and in PyTorch's operators."""

import importlib.metadata
import logging
import os
import warnings

import torch
from dovetail import functional
from dovetail.moe import MoELayer
from peers import add_peers
from torch import Tensor, nn

# DeepSpeed and torchtitan, each with the packages that importing its layer needs.
PACKAGES = [
    "deepspeed==0.19.8",
    "einops==0.8.2",
    "hjson==3.1.0",
    "msgpack==1.2.4",
    "psutil==7.2.2",
    "py-cpuinfo==9.0.0",
    "torchtitan==0.3.0",
    "spmd_types==0.2.3",
    "tyro==1.0.17",
    "docstring_parser==0.18.0",
]
ACTIVATIONS = {"swiglu": functional.swiglu, "gelu": functional.gelu, "relu2": functional.squared_relu}


class Network:
    """Weights of a mixture. Its sides use the same memory, or copies where their layout differs.

    router (E, width) float32, up (E, rows, width), down (E, width, ff). With SwiGLU, rows = 2 ff: the gate's rows are
    first. `products` is the dtype in which the peers multiply.
    """

    def __init__(self, shape: dict, activation: str, dtype: torch.dtype, products: torch.dtype):
        self.experts, self.k, self.ff, self.width = (shape[name] for name in ["experts", "k", "ff", "width"])
        self.activation, self.dtype, self.products = activation, dtype, products
        self.rows = self.ff * (2 if activation == "swiglu" else 1)
        self.router = self.weight(self.experts, self.width).float()
        self.up = self.weight(self.experts, self.rows, self.width)
        self.down = self.weight(self.experts, self.width, self.ff)

    def weight(self, *sizes: int) -> Tensor:
        return (torch.randn(*sizes) * sizes[-1] ** -0.5).to(self.dtype)


class Side(nn.Module):
    """`forward(x)` is the whole layer: x (T, width) to y of the same shape and dtype."""

    def __init__(self, network: Network):
        super().__init__()
        self.network = network
        self.experts, self.k = network.experts, network.k
        self.activation = ACTIVATIONS[network.activation]

    def gradients(self) -> dict[str, Tensor]:
        """Gradients of router (E, width), up (E, rows, width) and down (E, width, ff)."""
        raise NotImplementedError


class Dense(Side):
    """The feed-forward with the active FLOPs of the mixture, in Dovetail's kernels."""

    def __init__(self, network: Network):
        super().__init__(network)
        self.up = nn.Parameter(network.weight(self.k * network.rows, network.width))
        self.down = nn.Parameter(network.weight(network.width, self.k * network.ff))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.activation(functional.linear(x, self.up)), self.down)


class Dovetail(Side):
    def __init__(self, network: Network):
        super().__init__(network)
        self.layer = MoELayer(
            network.width, network.ff, self.experts, self.k, network.activation, load_loss=0.0, device="meta"
        )
        self.layer.router = nn.Parameter(network.router)
        self.layer.up = nn.ParameterList(network.up.unbind())
        self.layer.down = nn.ParameterList(network.down.unbind())
        self.layer.load = torch.zeros(self.experts, dtype=torch.int64)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]

    def gradients(self) -> dict[str, Tensor]:
        up, down = (torch.stack([weight.grad for weight in list]) for list in [self.layer.up, self.layer.down])
        return {"router": self.layer.router.grad, "up": up, "down": down}


class Expert(nn.Module):
    """An expert of DeepSpeed's, which are any modules: Dovetail's activation between two products."""

    def __init__(self, network: Network):
        super().__init__()
        self.activation, self.products = ACTIVATIONS[network.activation], network.products

    def forward(self, x: Tensor) -> Tensor:
        up, down = self.up.to(self.products), self.down.to(self.products)
        hidden = self.activation(nn.functional.linear(x.to(self.products), up))
        return nn.functional.linear(hidden, down).to(x.dtype)


class DeepSpeed(Side):
    """DeepSpeed-MoE with experts on one rank. Capacity is the largest load, so no choice is dropped."""

    def __init__(self, network: Network):
        super().__init__(network)

        os.environ["DS_ACCELERATOR"] = "cpu"
        from deepspeed.moe.layer import MoE

        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        self.layer = MoE(
            network.width,
            Expert(network),
            self.experts,
            k=self.k,
            min_capacity=0,
            drop_tokens=False,
            use_rts=False,
            top2_2nd_expert_sampling=False,
        )
        self.layer.deepspeed_moe.gate.wg.weight = nn.Parameter(network.router)
        self.modules_of_experts = self.layer.deepspeed_moe.experts.deepspeed_experts
        for expert, up, down in zip(self.modules_of_experts, network.up, network.down, strict=True):
            expert.up, expert.down = nn.Parameter(up), nn.Parameter(down)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]

    def gradients(self) -> dict[str, Tensor]:
        up = torch.stack([expert.up.grad for expert in self.modules_of_experts])
        down = torch.stack([expert.down.grad for expert in self.modules_of_experts])
        return {"router": self.layer.deepspeed_moe.gate.wg.weight.grad, "up": up, "down": down}


class Float32Gate(nn.Module):
    """The gate in float32. torchtitan asks for it by an autocast to float32, which a CPU does not have."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.float(), self.weight)


@torch.compiler.disable  # torch.compile knows _grouped_mm in bfloat16 alone
def grouped_product(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return torch._grouped_mm(rows, weight.transpose(-2, -1), offs=ends)


class Torchtitan(Side):
    """torchtitan's layer. Its experts are SwiGLU, and multiply in bfloat16.

    If `products` is float32, their `forward` is the same with casts to float32.
    """

    def __init__(self, network: Network):
        super().__init__(network)
        from torchtitan.models.common.linear import Linear
        from torchtitan.models.common.moe import GroupedExperts, MoE, RoutedExperts, TokenChoiceTopKRouter
        from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher

        experts, width = self.experts, network.width
        inner = GroupedExperts.Config(dim=width, hidden_dim=network.ff, num_experts=experts)
        router = TokenChoiceTopKRouter.Config(
            num_experts=experts,
            gate=Linear.Config(in_features=width, out_features=experts),
            top_k=self.k,
            score_func="softmax",
            route_norm=True,
        )
        dispatcher = LocalTokenDispatcher.Config(num_experts=experts, top_k=self.k)
        routed = RoutedExperts.Config(inner_experts=inner, token_dispatcher=dispatcher)
        self.layer = MoE.Config(
            num_experts=experts, routed_experts=routed, router=router, load_balance_coeff=None
        ).build()
        warnings.filterwarnings("ignore", "In CPU autocast, but the target dtype is not supported")
        self.layer.router.gate = Float32Gate(network.router)
        inner = self.inner = self.layer.routed_experts.inner_experts
        gate, up = network.up.chunk(2, dim=1)
        inner.w1_EFD, inner.w3_EFD = nn.Parameter(gate.contiguous()), nn.Parameter(up.contiguous())
        inner.w2_EDF = nn.Parameter(network.down)
        if network.products == torch.float32:
            inner.forward = self.float32_experts

    def float32_experts(self, x: Tensor, counts: Tensor) -> Tensor:
        inner, ends, x_float32 = self.inner, torch.cumsum(counts, 0, dtype=torch.int32), x.float()
        hidden = nn.functional.silu(grouped_product(x_float32, inner.w1_EFD.float(), ends))
        hidden = hidden * grouped_product(x_float32, inner.w3_EFD.float(), ends)
        return grouped_product(hidden, inner.w2_EDF.float(), ends).type_as(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[None])[0]

    def gradients(self) -> dict[str, Tensor]:
        up = torch.cat([self.inner.w1_EFD.grad, self.inner.w3_EFD.grad], 1)
        return {"router": self.layer.router.gate.weight.grad, "up": up, "down": self.inner.w2_EDF.grad}


class CompiledTorchtitan(Torchtitan):
    def __init__(self, network: Network):
        super().__init__(network)
        torch.compiler.reset()  # each measurement compiles anew
        self.layer.compile()


class Stacked(Side):
    """PyTorch's operators with one tensor for all experts."""

    def __init__(self, network: Network):
        super().__init__(network)
        self.router = nn.Parameter(network.router)
        self.up, self.down = nn.Parameter(network.up), nn.Parameter(network.down)

    def gradients(self) -> dict[str, Tensor]:
        return {"router": self.router.grad, "up": self.up.grad, "down": self.down.grad}

    def wide(self, *tensors: Tensor) -> list[Tensor]:
        return [tensor.to(self.network.products) for tensor in tensors]

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight, expert = torch.softmax(x.float() @ self.router.t(), dim=-1).topk(self.k, dim=-1)
        return weight / weight.sum(dim=-1, keepdim=True), expert

    def sorted_rows(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows by expert, their tokens, their weights and each expert's count."""
        weight, expert = self.route(x)
        order = expert.flatten().argsort(stable=True)
        token = order // self.k
        return x[token], token, weight.flatten()[order], torch.bincount(expert.flatten(), minlength=self.experts)

    def combined(self, x: Tensor, rows: Tensor, token: Tensor, weight: Tensor) -> Tensor:
        return torch.zeros(x.shape).index_add(0, token, rows.float() * weight[:, None]).to(x.dtype)


class Listed(Stacked):
    """PyTorch's operators with tensors for each expert."""

    def __init__(self, network: Network):
        Side.__init__(self, network)
        self.router = nn.Parameter(network.router)
        self.up, self.down = nn.ParameterList(network.up.unbind()), nn.ParameterList(network.down.unbind())

    def gradients(self) -> dict[str, Tensor]:
        up, down = (torch.stack([weight.grad for weight in list]) for list in [self.up, self.down])
        return {"router": self.router.grad, "up": up, "down": down}

    def run(self, e: int, rows: Tensor) -> Tensor:
        rows, up, down = self.wide(rows, self.up[e], self.down[e])
        return self.activation(rows @ up.t()) @ down.t()


class IndexAdd(Listed):
    def forward(self, x: Tensor) -> Tensor:
        weight, expert = self.route(x)
        y = torch.zeros(x.shape)
        for e in range(self.experts):
            token, choice = torch.where(expert == e)
            y.index_add_(0, token, self.run(e, x[token]).float() * weight[token, choice, None])
        return y.to(x.dtype)


class Sorted(Listed):
    def forward(self, x: Tensor) -> Tensor:
        rows, token, weight, count = self.sorted_rows(x)
        made = [self.run(e, part) for e, part in enumerate(rows.split(count.tolist()))]
        return self.combined(x, torch.cat(made), token, weight)


class GroupedMm(Stacked):
    def forward(self, x: Tensor) -> Tensor:
        rows, token, weight, count = self.sorted_rows(x)
        ends = count.cumsum(0).int()
        rows, up, down = self.wide(rows, self.up, self.down)
        hidden = self.activation(torch._grouped_mm(rows, up.transpose(1, 2), ends))
        return self.combined(x, torch._grouped_mm(hidden, down.transpose(1, 2), ends), token, weight)


class Padded(Stacked):
    def forward(self, x: Tensor) -> Tensor:
        rows, token, weight, count = self.sorted_rows(x)
        capacity = int(count.max())
        expert = torch.repeat_interleave(torch.arange(self.experts), count)
        place = expert * capacity + torch.arange(len(token)) - (count.cumsum(0) - count)[expert]
        rows, up, down = self.wide(rows, self.up, self.down)
        padded = rows.new_zeros(self.experts * capacity, x.shape[1]).index_copy(0, place, rows)
        hidden = self.activation(torch.bmm(padded.view(self.experts, capacity, -1), up.transpose(1, 2)))
        made = torch.bmm(hidden, down.transpose(1, 2)).view(-1, x.shape[1])
        return self.combined(x, made[place], token, weight)


PEERS: dict[str, type[Side]] = {
    "deepspeed": DeepSpeed,
    "torchtitan": Torchtitan,
    "torchtitan_compiled": CompiledTorchtitan,
    "grouped_mm": GroupedMm,
    "sorted": Sorted,
    "index_add": IndexAdd,
    "padded": Padded,
}
INSTALLED = ["deepspeed", "torchtitan", "torchtitan_compiled"]
SWIGLU_ALONE = ["torchtitan", "torchtitan_compiled"]


def install(peers: list[str]) -> list[str]:
    """Makes DeepSpeed and torchtitan importable if `peers` need them. Returns names and versions of all that run."""
    if set(peers) & set(INSTALLED):
        add_peers("moe", PACKAGES, install=True)
    names = ["torch", *(name for name in ["deepspeed", "torchtitan"] if any(name in peer for peer in peers))]
    return [f"{name} {importlib.metadata.version(name)}" for name in names]
