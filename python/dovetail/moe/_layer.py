"""A feed-forward layer of experts."""

import math
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from dovetail import functional
from dovetail.moe._operators import Routing, route
from torch import Tensor, nn

#: Names of the methods that choose experts.
ROUTERS = ("top_k", "noisy_top_k", "sinkhorn", "base", "balanced", "expert_choice", "hash")
ACTIVATIONS = ("swiglu", "gelu", "relu2")
#: Routers that learn to balance the load by a loss.
BALANCED_BY_LOSS = ("top_k", "noisy_top_k")
#: Added to the scale of the noise of noisy_top_k.
LEAST_NOISE = 0.01


def activate(h: Tensor, activation: str) -> Tensor:
    if activation == "swiglu":
        gate, up = h.chunk(2, -1)
        return F.silu(gate) * up
    return F.gelu(h, approximate="tanh") if activation == "gelu" else F.relu(h).square()


class MoELayer(nn.Module):
    """Feed-forward layer with ``experts`` experts; a router sends each token to k of them.

    An expert is ``down(activation(up(x)))``. Each expert's matrices are separate parameters, so
    DistributedDataParallel works as with any other layer. The router's parameters are float32 whatever the experts'
    ``dtype``. They stay float32 under ``.bfloat16()`` and ``.half()``. Works under ``torch.compile(fullgraph=True)``,
    ``torch.export`` and ``torch.autocast``. A compiled backward computes the forward of the experts again.

    In evaluation (``.eval()``) no choice is dropped, unless ``eval_capacity_factor`` is given. Sinkhorn and BASE then
    choose the largest scores. Router noisy_top_k adds no noise. Router balanced goes by the position in the sequence.

    Args:
        width: elements per token.
        ffn_width: inner width of an expert.
        experts: number of experts.
        k: choices per token.
        activation: ``"swiglu"`` (``up`` holds gate, then up), ``"gelu"`` or ``"relu2"``.
        bias: whether ``up`` and ``down`` have biases.
        load_loss: coefficient of the load-balancing loss. None: 0.01 for top_k and noisy_top_k, 0 for the others.
        z_loss: coefficient of the router's z-loss.
        device: device of the parameters.
        dtype: dtype of the experts' parameters.
        gate: module in place of the router. It maps rows (T, width) float32 to a :class:`Routing` with any number of
            choices per token. Slots of an expert are distinct and start at 0.
        router: name of the method that chooses experts.

            - ``"top_k"``, ``"sinkhorn"``, ``"base"`` and ``"balanced"``: as in :func:`route`.
            - ``"noisy_top_k"``: normal noise on the logits in training, with a learned scale (Shazeer et al. 2017).
            - ``"expert_choice"``: each expert takes its best tokens (Zhou et al. 2022). It reads later tokens.
            - ``"hash"``: by the token's id alone (Roller et al. 2021). Each weight is 1 / k.
        shared_experts: additional experts that process every token. They form one feed-forward.
        shared_gate: multiply the shared experts' output by the sigmoid of a learned number of the token (Qwen-MoE).
        bias_update_rate: change of each expert's selection bias in :meth:`update_bias` (Wang et al. 2024). None: no
            bias. The bias is the buffer ``router_bias``, (E) float32.
        importance_loss: coefficient of the importance loss of noisy_top_k.
        smooth_load_loss: coefficient of the load loss of noisy_top_k.
        eval_capacity_factor: capacity factor in evaluation; 0: no capacity.
        hash_seed: seed of router ``"hash"``. Layers of a model should have different ones.
        routing: options of :func:`route`; ``drop`` is ``"none"`` (dropless) by default.

    Raises:
        ValueError: an unknown name, options of the router together with ``gate``, or options that the router does not
            read.
        RuntimeError: an option of the router does not fit, by name.
    """

    def __init__(
        self,
        width: int,
        ffn_width: int,
        experts: int,
        k: int = 2,
        activation: str = "swiglu",
        bias: bool = False,
        load_loss: float | None = None,
        z_loss: float = 0.0,
        device=None,
        dtype: torch.dtype | None = None,
        gate: nn.Module | None = None,
        *,
        router: str = "top_k",
        shared_experts: int = 0,
        shared_gate: bool = False,
        bias_update_rate: float | None = None,
        importance_loss: float = 0.0,
        smooth_load_loss: float = 0.0,
        eval_capacity_factor: float = 0.0,
        hash_seed: int = 0,
        **routing,
    ):
        super().__init__()
        self.k, self.activation, self.method = k, activation, router
        self.load_loss = load_loss if load_loss is not None else 0.01 * (router in BALANCED_BY_LOSS)
        self.z_loss, self.importance_loss, self.smooth_load_loss = z_loss, importance_loss, smooth_load_loss
        self.bias_update_rate, self.eval_capacity_factor = bias_update_rate, eval_capacity_factor
        self.hash_seed = hash_seed
        self.routing = {"drop": "none", **routing}
        self.gate = gate
        self._check(experts, routing, shared_experts, shared_gate)
        rows = 2 * ffn_width if activation == "swiglu" else ffn_width

        def matrices(*sizes: int) -> nn.ParameterList:
            return nn.ParameterList(torch.empty(*sizes, device=device, dtype=dtype) for _ in range(experts))

        def matrix(given: bool, *sizes: int, dtype: torch.dtype | None = dtype) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(*sizes, device=device, dtype=dtype)) if given else None

        learned = gate is None and router != "hash"
        self.router = matrix(learned, experts, width, dtype=torch.float32)
        self.router_noise = matrix(router == "noisy_top_k", experts, width, dtype=torch.float32)
        has_bias = bias_update_rate is not None
        self.register_buffer("router_bias", torch.zeros(experts, device=device) if has_bias else None)
        self.up, self.down = matrices(rows, width), matrices(width, ffn_width)
        self.up_bias = matrices(rows) if bias else nn.ParameterList()
        self.down_bias = matrices(width) if bias else nn.ParameterList()
        self.shared_up = matrix(shared_experts > 0, shared_experts * rows, width)
        self.shared_down = matrix(shared_experts > 0, width, shared_experts * ffn_width)
        self.shared_gate = matrix(shared_gate, 1, width)
        #: (E) int64: choices of each expert in training since :meth:`reset_load`, dropped ones included.
        self.load = torch.zeros(experts, dtype=torch.int64, device=device)
        self.reset_parameters()

    def _check(self, experts: int, routing: dict, shared_experts: int, shared_gate: bool) -> None:
        router = self.method
        if self.activation not in ACTIVATIONS:
            raise ValueError(f'activation "{self.activation}" is none of "swiglu", "gelu", "relu2"')
        if router not in ROUTERS:
            raise ValueError(f'router "{router}" is none of {", ".join(ROUTERS)}')
        if self.gate is not None and (routing or router != "top_k" or self.bias_update_rate is not None):
            given = [*routing, *(["router"] if router != "top_k" else [])]
            given += ["bias_update_rate"] if self.bias_update_rate is not None else []
            raise ValueError(f"{', '.join(given)}: options of the router, which `gate` stands in for")
        for name, given in [("importance_loss", self.importance_loss), ("smooth_load_loss", self.smooth_load_loss)]:
            if given and router != "noisy_top_k":
                raise ValueError(f'{name} is read by router="noisy_top_k" alone; leave it out')
        if self.load_loss and self.gate is None and router not in BALANCED_BY_LOSS:
            raise ValueError(f'load_loss does nothing with router="{router}"; leave it out')
        if self.bias_update_rate is not None and router not in BALANCED_BY_LOSS:
            raise ValueError(f'bias_update_rate does nothing with router="{router}"; leave it out')
        if router in ("expert_choice", "hash") and set(routing) - {"scale"}:
            given = ", ".join(sorted(set(routing) - {"scale"}))
            raise ValueError(f'{given}: router="{router}" does not read it; leave it out')
        if self.eval_capacity_factor and router in ("expert_choice", "hash"):
            raise ValueError(f'eval_capacity_factor: router="{router}" has no capacity; leave it out')
        if not 1 <= self.k <= experts:
            raise ValueError(f"k = {self.k} must be 1 to {experts}, the number of experts")
        if shared_gate and shared_experts == 0:
            raise ValueError("shared_gate does nothing without shared_experts; leave it out")
        if self.gate is None and router not in ("expert_choice", "hash"):
            route(torch.zeros(1, experts), self.k, **self._options(training=True))
            route(torch.zeros(1, experts), self.k, **self._options(training=False))

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly from ±1 / sqrt(fan-in), as ``torch.nn.Linear`` does. The bias becomes zero."""
        alone = [self.router, self.router_noise, self.shared_up, self.shared_down, self.shared_gate]
        for weight in [*(w for w in alone if w is not None), *self.up, *self.down]:
            nn.init.uniform_(weight, -1 / math.sqrt(weight.shape[1]), 1 / math.sqrt(weight.shape[1]))
        for weights, biases in [(self.up, self.up_bias), (self.down, self.down_bias)]:
            for weight, bias in zip(weights, biases, strict=False):
                nn.init.uniform_(bias, -1 / math.sqrt(weight.shape[1]), 1 / math.sqrt(weight.shape[1]))
        if self.router_bias is not None:
            self.router_bias.zero_()

    def reset_load(self) -> None:
        """Set :attr:`load` to zero."""
        self.load.zero_()

    @torch.no_grad()
    def update_bias(self, group: dist.ProcessGroup | None = None) -> None:
        """Raise the selection bias of experts with less than the mean load, lower the others', and reset the load.

        ``router_bias += bias_update_rate * sign(mean(load) - load)``. Call it after each optimizer step. If
        torch.distributed is initialised, the load is summed over ``group`` (None: all ranks). All ranks of the group
        then call this together.

        Raises:
            RuntimeError: the layer has no ``bias_update_rate``.
        """
        if self.router_bias is None:
            raise RuntimeError("update_bias: the layer has no selection bias; give bias_update_rate")
        if dist.is_initialized():
            dist.all_reduce(self.load, group=group)
        load = self.load.double()
        self.router_bias.add_((load.mean() - load).sign().to(self.router_bias.dtype), alpha=self.bias_update_rate)
        self.reset_load()

    def _apply(self, fn, recurse: bool = True):
        """Converts parameters and buffers. Router parameters do not become 16-bit."""
        wide = {name: getattr(self, name) for name in ("router", "router_noise", "router_bias")}
        wide = {name: tensor.detach() for name, tensor in wide.items() if tensor is not None}
        super()._apply(fn, recurse)
        for name, before in wide.items():
            now = getattr(self, name)
            if now.dtype in (torch.bfloat16, torch.float16):
                now.data = before.to(now.device)
        self.load = fn(self.load)
        return self

    def _options(self, training: bool) -> dict:
        """Options of :func:`route`."""
        options = dict(self.routing)
        by_scores = self.method in (*BALANCED_BY_LOSS, *([] if training else ["sinkhorn", "base"]))
        options["router"] = "top_k" if by_scores else self.method
        if not training:
            factor = self.eval_capacity_factor
            options |= {"capacity_factor": factor} if factor > 0 else {"drop": "none"}
        return options

    def _route(self, x: Tensor, length: int, tokens: Tensor | None) -> tuple[Routing, Tensor]:
        """Routing of rows x (T, width), sequences of ``length``, and the loss."""
        if self.gate is not None:
            routing = self.gate(x)
            return routing, self._loss_of(routing)
        if self.method == "hash":
            return self._by_hash(x, tokens)
        logits = functional.linear(x, self.router.to(x.dtype))
        if self.method == "expert_choice":
            return self._by_experts(logits)
        options = self._options(self.training)
        if self.router_bias is not None:
            options["bias"] = self.router_bias
        if self.method == "balanced" and not self.training:
            options |= {"router": "top_k", "chosen": self._in_turn(len(x), length, x.device)}
        if self.method != "noisy_top_k" or not self.training:
            routing = route(logits, self.k, **options)
            return routing, self._loss_of(routing)
        scale = F.softplus(functional.linear(x, self.router_noise.to(x.dtype))) + LEAST_NOISE
        noise = torch.randn_like(logits)
        routing = route(logits + noise * scale, self.k, **options)
        loss = self._loss_of(routing)
        if self.importance_loss:
            importance = torch.ops.dovetail.moe_importance_loss(routing.weight, routing.expert, len(self.up))
            loss = loss + self.importance_loss * importance
        if self.smooth_load_loss:
            smooth = torch.ops.dovetail.moe_smooth_load_loss(logits, noise, scale, self.k)
            loss = loss + self.smooth_load_loss * smooth
        return routing, loss

    def _loss_of(self, routing: Routing) -> Tensor:
        return self.load_loss * routing.load_loss + self.z_loss * routing.z_loss

    def _by_experts(self, logits: Tensor) -> tuple[Routing, Tensor]:
        """Each expert takes its ceil(T k / E) best tokens. A token has a choice of each expert; most are dropped."""
        count, experts = logits.shape
        slots = min(count, -(-count * self.k // experts))
        scores = logits.softmax(1)
        token = torch.argsort(scores.detach(), dim=0, descending=True, stable=True)[:slots]  # (slots, E)
        number = torch.arange(slots, dtype=torch.int32, device=logits.device)[:, None].expand(slots, experts)
        slot = torch.full((count, experts), -1, dtype=torch.int32, device=logits.device).scatter(0, token, number)
        expert = torch.arange(experts, dtype=torch.int32, device=logits.device).expand(count, experts)
        weight = torch.where(slot >= 0, scores * self.routing.get("scale", 1.0), 0.0)
        load = torch.full((experts,), slots, device=logits.device)
        z_loss = logits.logsumexp(1).square().mean() if count > 0 else logits.sum()
        return Routing(expert, slot, weight, load, logits.new_zeros(()), z_loss), self.z_loss * z_loss

    def _in_turn(self, count: int, length: int, device: torch.device) -> Tensor:
        """Experts by the position in the sequence: choice j at t is (t k + j) mod E."""
        position = torch.arange(count, device=device)[:, None] % length
        return (position * self.k + torch.arange(self.k, device=device)) % len(self.up)

    def _by_hash(self, x: Tensor, tokens: Tensor | None) -> tuple[Routing, Tensor]:
        if tokens is None or tokens.numel() != len(x):
            raise ValueError(f'router="hash" needs the ids of the {len(x)} tokens: layer(x, tokens)')
        chosen = torch.ops.dovetail.moe_hash(tokens.reshape(-1).cpu(), len(self.up), self.k, self.hash_seed)
        routing = route(x.new_zeros(len(x), len(self.up)), self.k, drop="none", chosen=chosen.to(x.device))
        weight = torch.full_like(routing.weight, self.routing.get("scale", 1.0) / self.k)
        return routing._replace(weight=weight), x.new_zeros(())

    def _shared(self, x: Tensor) -> Tensor:
        y = F.linear(activate(F.linear(x, self.shared_up), self.activation), self.shared_down)
        return y if self.shared_gate is None else F.linear(x, self.shared_gate).sigmoid() * y

    def forward(self, x: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map x (..., width) to y of the same shape and dtype, and the router's loss.

        Args:
            x: rows of tokens.
            tokens: ids of the tokens, (...) int64; read by router ``"hash"`` alone.

        Returns:
            y, and the sum of the router's losses times their coefficients, a scalar.
        """
        rows = x.reshape(-1, x.shape[-1])
        with nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False):
            routing, loss = self._route(
                rows if x.dtype == torch.float64 else rows.float(), x.shape[-2] if x.dim() > 1 else 1, tokens
            )
        y = torch.ops.dovetail.moe_experts(
            rows,
            routing.weight,
            routing.expert,
            routing.slot,
            list(self.up),
            list(self.down),
            list(self.up_bias),
            list(self.down_bias),
            self.activation,
        )
        if self.shared_up is not None:
            y = y + self._shared(rows)
        if self.training and not torch.compiler.is_exporting():
            self.load.add_(routing.count)
        return y.to(x.dtype).reshape(x.shape), loss

    def extra_repr(self) -> str:
        width, choices = self.down[0].shape[0], "" if self.gate else f"router={self.method}, k={self.k}, "
        return f"width={width}, experts={len(self.up)}, {choices}activation={self.activation}"
