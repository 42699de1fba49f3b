"""Checks of a layer's options: none is unknown, and none is without effect."""

import math
from collections.abc import Mapping

import torch

#: Names of the methods that choose experts.
ROUTERS = ("top_k", "noisy_top_k", "sinkhorn", "base", "balanced", "expert_choice", "hash")
ACTIVATIONS = ("swiglu", "gelu", "relu2")
#: Routers that learn to balance the load by a loss.
BALANCED_BY_LOSS = ("top_k", "noisy_top_k")
#: Routers without options of `route`, except a scale.
WITHOUT_ROUTE = ("expert_choice", "hash")
#: Arguments of the operator moe_route that the layer sets itself.
SET_BY_LAYER = {"logits", "k", "bias", "draw", "chosen", "router"}
#: Options of `route` that only a capacity reads.
OF_CAPACITY = {"slot_order", "batch_prioritized", "capacity_rule", "capacity_factor", "capacity", "draw_frees_slot"}


def refuse(names, why: str) -> None:
    """Raises ValueError if there are `names`."""
    if names:
        raise ValueError(f"{', '.join(sorted(names))}: {why}; leave it out")


def check_number(name: str, value, least: float, most: float = math.inf, whole: bool = False) -> None:
    """Raises ValueError unless `least` <= value <= `most`, and value is finite."""
    kind = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most or math.isinf(value):
        limit = f"from {least} to {most}" if most < math.inf else f"at least {least}"
        raise ValueError(f"{name} = {value!r} must be {'an integer' if whole else 'a number'}, {limit}")


def check_sizes(layer, ffn_width: int | None, experts: int, shared_experts: int, timeout_s: float) -> None:
    """Refuses sizes and coefficients out of range."""
    check_number("width", layer.width, 1, whole=True)
    if ffn_width is not None:
        check_number("ffn_width", ffn_width, 1, whole=True)
    check_number("experts", experts, 1, whole=True)
    if isinstance(layer.k, bool) or not isinstance(layer.k, int) or not 1 <= layer.k <= experts:
        raise ValueError(f"k = {layer.k!r} must be 1 to {experts}, the number of experts")
    check_number("shared_experts", shared_experts, 0, whole=True)
    for name in ("load_loss", "z_loss", "importance_loss", "smooth_load_loss", "eval_capacity_factor"):
        check_number(name, getattr(layer, name), 0)
    if layer.bias_update_rate is not None:
        check_number("bias_update_rate", layer.bias_update_rate, 0)
    if layer.routing.get("scale", 1.0) <= 0:
        raise ValueError(f"scale = {layer.routing['scale']} must be above 0")
    check_number("hash_seed", layer.hash_seed, 0, whole=True)
    check_number("timeout_s", timeout_s, 0)


def check_names(layer) -> None:
    """Refuses names of methods and options that do not exist."""
    if layer.activation not in ACTIVATIONS:
        raise ValueError(f'activation "{layer.activation}" is none of "swiglu", "gelu", "relu2"')
    if layer.method not in ROUTERS:
        raise ValueError(f'router "{layer.method}" is none of {", ".join(ROUTERS)}')
    if layer.second_expert not in ("always", "random"):
        raise ValueError(f'second_expert "{layer.second_expert}" is none of "always", "random"')
    known = {argument.name for argument in torch.ops.dovetail.moe_route.default._schema.arguments} - SET_BY_LAYER
    unknown = sorted(set(layer.routing) - known)
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no option of MoELayer or route; these are {', '.join(sorted(known))}")


def check_router(layer, shared_experts: int, shared_gate: bool) -> None:
    """Refuses options that the layer's router does not read."""
    router, routing = layer.method, layer.routing
    random = {"second_expert"} if layer.second_expert != "always" else set()
    if layer.gate is not None:
        given = [*routing, *random, *(["router"] if router != "top_k" else [])]
        given += ["bias_update_rate"] if layer.bias_update_rate is not None else []
        if given:
            raise ValueError(f"{', '.join(given)}: options of the router, which `gate` stands in for")
    for name in ("importance_loss", "smooth_load_loss"):
        if getattr(layer, name) and router != "noisy_top_k":
            raise ValueError(f'{name} is read by router="noisy_top_k" alone; leave it out')
    if layer.hash_seed and router != "hash":
        raise ValueError('hash_seed is read by router="hash" alone; leave it out')
    if layer.gate is None and router not in BALANCED_BY_LOSS:
        rate = {"bias_update_rate"} if layer.bias_update_rate is not None else set()
        refuse(({"load_loss"} if layer.load_loss else set()) | rate, f'does nothing with router="{router}"')
    if router in WITHOUT_ROUTE:
        refuse(set(routing) - {"scale"} | random, f'router="{router}" does not read it')
        refuse({"eval_capacity_factor"} if layer.eval_capacity_factor else {}, f'router="{router}" has no capacity')
    if shared_gate and shared_experts == 0:
        raise ValueError("shared_gate does nothing without shared_experts; leave it out")


def check_route(layer) -> None:
    """Refuses options of `route` that the others leave without effect, as dovetail/moe/config.cpp does."""
    routing: Mapping = layer.routing
    drop, groups = routing["drop"], routing.get("num_groups", 1)
    if drop == "none":
        of_evaluation = {"eval_capacity_factor"} if layer.eval_capacity_factor else set()
        refuse(OF_CAPACITY & set(routing) | of_evaluation, 'does nothing without a capacity (drop="none")')
    if drop == "probability":
        refuse({"slot_order", "batch_prioritized"} & set(routing), 'does nothing with drop="probability"')
    if routing.get("capacity", 0) > 0:
        refuse({"capacity_rule", "capacity_factor"} & set(routing), "does nothing with capacity")
    if groups == 1:
        refuse({"group_score", "top_groups"} & set(routing), "does nothing without num_groups")
    elif routing.get("top_groups", 1) == groups:
        raise ValueError(f"num_groups = {groups} and top_groups = {groups} allow all groups; leave them out")
    if layer.second_expert == "always":
        refuse({"draw_frees_slot"} & set(routing), 'does nothing without second_expert="random"')
    elif layer.k != 2:
        raise ValueError(f'second_expert="random" drops the second of two experts, but k = {layer.k}; use k = 2')
    if layer.k == 1 and routing.get("normalize") == "after":
        raise ValueError('normalize="after" does nothing with k = 1, whose weights are the scores; leave it out')
