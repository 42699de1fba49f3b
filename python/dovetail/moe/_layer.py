"""A feed-forward layer of experts."""

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from dovetail import functional
from dovetail.moe._experts import ExpertModules, ExpertParameters, callable_experts, draw_seed, run_modules, seeded
from dovetail.moe._operators import Routing, route
from dovetail.moe._options import (
    BALANCED_BY_LOSS,
    WITHOUT_ROUTE,
    check_names,
    check_route,
    check_router,
    check_sizes,
)
from dovetail.moe._ranks import ExpertRanks
from torch import Tensor, nn

#: Added to the scale of the noise of noisy_top_k.
LEAST_NOISE = 0.01
#: Replaces smaller sums of scores, as in dovetail/moe/routing.cpp.
LEAST_SUM = 1e-20


def draw_uniform(tensor: Tensor, fan_in: int) -> None:
    nn.init.uniform_(tensor, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))


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

    With ``group``, the experts are spread over the ranks of a ProcessGroup. Each rank passes its own tokens, of any
    number. All ranks call the layer together, and each rank's loss must depend on y.

    - Rank r of n has experts E r // n to E (r + 1) // n - 1. ``up``, ``down`` and the state dict have these numbers.
      A state dict of all experts can be loaded on every rank.
    - The router and the shared experts are replicated. With the same seed on all ranks, the parameters are the ones
      of a layer without a group.
    - Gradients of experts are sums over the tokens of all ranks. :func:`average_gradients` makes them means, as
      DistributedDataParallel makes the others.
    - The mean of the ranks' router losses is the loss of one rank with all tokens. This holds for the load loss and
      the z-loss. The losses of a gate and of noisy_top_k cover the rank's own tokens.
    - Capacities and :attr:`load` cover the rank's own tokens.
    - ``torch.compile`` runs the layer between two graphs. ``torch.export`` refuses it.

    Args:
        width: elements per token.
        ffn_width: inner width of an expert. None with ``expert``, unless there are shared experts.
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
        second_expert: second expert in training with k = 2. ``"always"``: used. ``"random"``: dropped where twice its
            weight is below a random number (GShard, Lepikhin et al. 2020).
        expert: function that makes an expert, in place of ``ffn_width``, ``activation`` and ``bias``. An expert is any
            module that maps rows (R, width) to rows of the same shape. It is called once in each forward, with R = 0
            if no token chose it. The experts are ``layer.experts``, by number.
        group: ranks of the experts; None: this rank has all.
        timeout_s: maximum seconds that a rank waits for the others.
        routing: options of :func:`route`; ``drop`` is ``"none"`` (dropless) by default.

    Raises:
        ValueError: an unknown name, a size or coefficient out of range, or options that nothing reads.
        RuntimeError: an option of the router does not fit, by name. Or the ranks' arguments differ.
    """

    def __init__(
        self,
        width: int,
        ffn_width: int | None,
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
        second_expert: str = "always",
        expert: Callable[[], nn.Module] | None = None,
        group: dist.ProcessGroup | None = None,
        timeout_s: float = 60.0,
        **routing,
    ):
        super().__init__()
        self.width, self.num_experts = width, experts
        self.k, self.activation, self.method = k, activation, router
        self.load_loss = load_loss if load_loss is not None else 0.01 * (router in BALANCED_BY_LOSS)
        self.z_loss, self.importance_loss, self.smooth_load_loss = z_loss, importance_loss, smooth_load_loss
        self.bias_update_rate, self.eval_capacity_factor = bias_update_rate, eval_capacity_factor
        self.hash_seed, self.second_expert = hash_seed, second_expert
        self.routing, self.gate = routing, gate
        check_sizes(self, ffn_width, experts, shared_experts, timeout_s)
        check_names(self)
        check_router(self, shared_experts, shared_gate)
        self.routing = {"drop": "none", **routing}
        if gate is None and router not in WITHOUT_ROUTE:
            check_route(self)
            for training in (True, False):
                route(torch.zeros(1, experts), k, **self._options(training))
        self._check_experts(ffn_width, bias, dtype, expert, shared_experts)
        self._ranks = None if group is None else ExpertRanks(group, timeout_s)
        if self._ranks is not None:
            sizes = {"width": width, "ffn_width": ffn_width, "experts": experts, "k": k, "bias": bias, "dtype": dtype}
            self._ranks.check_equal(self._describe(sizes | {"expert": expert is not None}))
        own = range(experts) if self._ranks is None else self._ranks.own_experts(experts)
        rows = 2 * (ffn_width or 0) if activation == "swiglu" else ffn_width

        def matrices(given: bool, *sizes: int) -> ExpertParameters:
            return ExpertParameters(own if given else range(0), experts, *sizes, device=device, dtype=dtype)

        def matrix(given: bool, *sizes: int, dtype: torch.dtype | None = dtype) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(*sizes, device=device, dtype=dtype)) if given else None

        learned = gate is None and router != "hash"
        self.router = matrix(learned, experts, width, dtype=torch.float32)
        self.router_noise = matrix(router == "noisy_top_k", experts, width, dtype=torch.float32)
        has_bias = bias_update_rate is not None
        self.register_buffer("router_bias", torch.zeros(experts, device=device) if has_bias else None)
        self.up, self.down = matrices(expert is None, rows, width), matrices(expert is None, width, ffn_width)
        self.up_bias, self.down_bias = matrices(bias, rows), matrices(bias, width)
        self.experts = None if expert is None else ExpertModules(own, experts, expert)
        self.shared_up = matrix(shared_experts > 0, *((shared_experts * rows, width) if shared_experts else ()))
        self.shared_down = matrix(shared_experts > 0, *((width, shared_experts * ffn_width) if shared_experts else ()))
        self.shared_gate = matrix(shared_gate, 1, width)
        #: (E) int64: choices of each expert in training since :meth:`reset_load`, dropped ones included.
        self.load = torch.zeros(experts, dtype=torch.int64, device=device)
        self.reset_parameters()

    def _check_experts(self, ffn_width, bias: bool, dtype, expert, shared_experts: int) -> None:
        by_sizes = expert is None or shared_experts > 0
        if by_sizes and ffn_width is None:
            whose = "experts have" if expert is None else "shared experts have"
            raise ValueError(f"ffn_width is None, but {whose} an inner width; give it")
        given = {
            "ffn_width": ffn_width is not None and not by_sizes,
            "activation": self.activation != "swiglu" and not by_sizes,
            "dtype": dtype is not None and not by_sizes,
            "bias": bias and expert is not None,
        }
        if any(given.values()):
            names = ", ".join(name for name, is_given in given.items() if is_given)
            raise ValueError(f"{names}: nothing reads it, since `expert` makes the experts; leave it out")

    def _describe(self, sizes: dict) -> str:
        """Options that must be equal on all ranks."""
        names = ("method", "second_expert", "activation", "load_loss", "z_loss", "importance_loss", "smooth_load_loss")
        options = sizes | {name: getattr(self, name) for name in names}
        options |= {name: value for name, value in self.routing.items() if not isinstance(value, Tensor)}
        return ", ".join(f"{name}={value}" for name, value in options.items())

    @property
    def group(self) -> dist.ProcessGroup | None:
        """Ranks of the experts."""
        return None if self._ranks is None else self._ranks.group

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly from ±1 / sqrt(fan-in), as ``torch.nn.Linear`` does. The bias becomes zero.

        Experts that are modules keep their parameters.
        """
        alone = [self.router, self.router_noise, self.shared_up, self.shared_down, self.shared_gate]
        for weight in alone:
            if weight is not None:
                draw_uniform(weight, weight.shape[1])
        seed = draw_seed()
        for e in self.up.own:
            with seeded(seed, e):
                for weights, biases in [(self.up, self.up_bias), (self.down, self.down_bias)]:
                    draw_uniform(weights[e], weights[e].shape[1])
                    if len(biases) > 0:
                        draw_uniform(biases[e], weights[e].shape[1])
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
            options |= {"capacity_factor": factor, "capacity": 0} if factor > 0 else {"drop": "none"}
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
        if self.second_expert == "random" and self.training:
            options["draw"] = torch.rand(len(x), dtype=x.dtype, device=x.device)
        if self.method == "balanced" and not self.training:
            options |= {"router": "top_k", "chosen": self._in_turn(len(x), length, x.device)}
        if self.method != "noisy_top_k" or not self.training:
            routing = route(logits, self.k, **options)
            return routing, self._loss_of(routing, logits)
        scale = F.softplus(functional.linear(x, self.router_noise.to(x.dtype))) + LEAST_NOISE
        noise = torch.randn_like(logits)
        routing = route(logits + noise * scale, self.k, **options)
        loss = self._loss_of(routing, logits + noise * scale)
        if self.importance_loss:
            importance = torch.ops.dovetail.moe_importance_loss(routing.weight, routing.expert, self.num_experts)
            loss = loss + self.importance_loss * importance
        if self.smooth_load_loss:
            smooth = torch.ops.dovetail.moe_smooth_load_loss(logits, noise, scale, self.k)
            loss = loss + self.smooth_load_loss * smooth
        return routing, loss

    def _loss_of(self, routing: Routing, logits: Tensor | None = None) -> Tensor:
        """Loss of a routing by ``logits``; None: by a gate."""
        load_loss, z_loss = routing.load_loss, routing.z_loss
        if self._ranks is not None and logits is not None and (self.load_loss or self.z_loss):
            load_loss, z_loss = self._losses_over_ranks(routing, logits)
        return self.load_loss * load_loss + self.z_loss * z_loss

    def _losses_over_ranks(self, routing: Routing, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Load loss and z-loss of this rank's tokens. Their means over the ranks are the losses of all tokens."""
        counted = routing.expert if self.routing.get("aux") == "all_choices" else routing.expert[:, :1]
        count = counted.flatten().bincount(minlength=self.num_experts)
        sums = self._ranks.sum(torch.cat([count, count.new_tensor([len(logits)])])).to(logits.dtype)
        count, tokens = sums[:-1], sums[-1].clamp(min=1)
        share = dist.get_world_size(self.group) * len(logits) / tokens
        if self.routing.get("sequence", 0) > 0:
            return share * routing.load_loss, share * routing.z_loss
        scores = logits.softmax(1) if self.routing.get("score", "softmax") == "softmax" else logits.sigmoid()
        mean_score = (scores / scores.sum(1, True).clamp(min=LEAST_SUM)).sum(0) / tokens
        relative_load = count * (self.num_experts / count.sum().clamp(min=1))
        return dist.get_world_size(self.group) * relative_load.dot(mean_score), share * routing.z_loss

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
        routing = Routing(expert, slot, weight, load, logits.new_zeros(()), z_loss)
        return routing, self._loss_of(routing, logits)

    def _in_turn(self, count: int, length: int, device: torch.device) -> Tensor:
        """Experts by the position in the sequence: choice j at t is (t k + j) mod E."""
        position = torch.arange(count, device=device)[:, None] % length
        return (position * self.k + torch.arange(self.k, device=device)) % self.num_experts

    def _by_hash(self, x: Tensor, tokens: Tensor | None) -> tuple[Routing, Tensor]:
        if tokens is None or tokens.numel() != len(x):
            raise ValueError(f'router="hash" needs the ids of the {len(x)} tokens: layer(x, tokens)')
        chosen = torch.ops.dovetail.moe_hash(tokens.reshape(-1).cpu(), self.num_experts, self.k, self.hash_seed)
        routing = route(x.new_zeros(len(x), self.num_experts), self.k, drop="none", chosen=chosen.to(x.device))
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

        Raises:
            ValueError: x has another width or no floating dtype, or router ``"hash"`` has no ``tokens``.
        """
        if x.dim() == 0 or x.shape[-1] != self.width or not x.is_floating_point():
            raise ValueError(f"MoELayer: x must be (..., {self.width}) floating; it is {list(x.shape)} {x.dtype}")
        if self._ranks is None:
            return self._compute(x, tokens)
        if torch.compiler._is_exporting_flag:  # is_exporting() is also true under torch.compile
            raise RuntimeError(
                "MoELayer: experts of other ranks cannot be exported; load the state dicts of all ranks into a layer "
                "without a group, and export that"
            )
        return self._compute_over_ranks(x, tokens)

    @torch.compiler.disable(reason="MoELayer with a group exchanges rows with other ranks, which no graph contains")
    def _compute_over_ranks(self, x: Tensor, tokens: Tensor | None) -> tuple[Tensor, Tensor]:
        if x.is_meta:
            raise RuntimeError("MoELayer: a layer with a group has no shapes on the meta device; leave group out there")
        in_data_parallel = nn.parallel.DistributedDataParallel._get_active_ddp_module() is not None
        if in_data_parallel and not all(hasattr(p, "_ddp_ignored") for p in expert_parameters(self).values()):
            raise RuntimeError(
                "MoELayer: DistributedDataParallel would average experts that differ between ranks; before it, call "
                "DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, "
                "list(dovetail.moe.expert_parameters(model)))"
            )
        return self._compute(x, tokens)

    def _compute(self, x: Tensor, tokens: Tensor | None) -> tuple[Tensor, Tensor]:
        rows = x.reshape(-1, x.shape[-1])
        with nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False):
            routing, loss = self._route(
                rows if x.dtype == torch.float64 else rows.float(), x.shape[-2] if x.dim() > 1 else 1, tokens
            )
        y = self._run_experts(rows, routing)
        if self.shared_up is not None:
            y = y + self._shared(rows)
        if self.training and not torch.compiler._is_exporting_flag:
            self.load.add_(routing.count)
        return y.to(x.dtype).reshape(x.shape), loss

    def _run_experts(self, x: Tensor, routing: Routing) -> Tensor:
        choices = x, routing.weight, routing.expert, routing.slot
        lists = [list(matrices) for matrices in (self.up, self.down, self.up_bias, self.down_bias)]
        if self._ranks is None:
            if self.experts is not None:
                return run_modules(self.experts, x, routing)
            return torch.ops.dovetail.moe_experts(*choices, *lists, self.activation)
        ranks = self.num_experts, self._ranks.engine
        if self.experts is None:
            return torch.ops.dovetail.moe_parallel_experts(*choices, *lists, self.activation, *ranks)
        with callable_experts(self.experts) as call:
            return torch.ops.dovetail.moe_parallel_modules(*choices, call, *ranks)

    def extra_repr(self) -> str:
        choices = "" if self.gate else f"router={self.method}, k={self.k}, "
        of_experts = f"activation={self.activation}" if self.experts is None else "expert=modules"
        ranks = "" if self._ranks is None else f", ranks={dist.get_world_size(self.group)}"
        return f"width={self.width}, experts={self.num_experts}, {choices}{of_experts}{ranks}"


def _spread_layers(model: nn.Module) -> list[tuple[str, MoELayer]]:
    return [(n, m) for n, m in model.named_modules() if isinstance(m, MoELayer) and m.group is not None]


def expert_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters of a model that this rank alone has, by name: the experts of layers with a ``group``.

    DistributedDataParallel and FSDP2 leave them alone if they get this list:

    >>> names = list(dovetail.moe.expert_parameters(model))
    >>> DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    >>> fully_shard(model, ignored_params=set(dovetail.moe.expert_parameters(model).values()))

    Args:
        model: module with any number of :class:`MoELayer`.

    Returns:
        Parameters by their name in ``model.named_parameters()``.
    """
    found = {}
    for name, layer in _spread_layers(model):
        for part in ("up", "down", "up_bias", "down_bias", "experts"):
            module = getattr(layer, part)
            if module is not None:
                found |= dict(module.named_parameters(".".join(filter(None, [name, part]))))
    return found


@torch.no_grad()
def average_gradients(model: nn.Module, replicas: dist.ProcessGroup | None = None) -> None:
    """Make the gradients of :func:`expert_parameters` means over ranks, as DistributedDataParallel makes the others.

    A layer's backward sums the gradients of an expert over the tokens of its group. This divides them by the number of
    ranks. Results then equal the ones of one rank that has all tokens and the mean of the ranks' losses. Call it once
    for each optimizer step, between backward and the step.

    Args:
        model: module with any number of :class:`MoELayer`.
        replicas: ranks that have the same experts, one of each of several groups. Gradients are first summed over
            them. None: no other rank has them.
    """
    for _, layer in _spread_layers(model):
        ranks = dist.get_world_size(layer.group) * (1 if replicas is None else dist.get_world_size(replicas))
        for parameter in expert_parameters(layer).values():
            if parameter.grad is None:
                continue
            if replicas is not None:
                dist.all_reduce(parameter.grad, group=replicas)
            parameter.grad /= ranks
