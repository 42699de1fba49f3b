"""Weights of mixtures as other libraries name them."""

from collections.abc import Mapping

import torch
from dovetail.moe._layer import MoELayer
from torch import Tensor, nn

#: For each layout: names of gate, up and down of an expert in a checkpoint, and of the shared experts.
LAYOUTS = {
    "mixtral": (("w1", "w3", "w2"), None),
    "deepseek": (("gate_proj", "up_proj", "down_proj"), "shared_experts"),
    "qwen": (("gate_proj", "up_proj", "down_proj"), "shared_expert"),
}
SHARED = ("gate_proj", "up_proj", "down_proj")


def _check(layer: MoELayer, layout: str) -> None:
    if layout not in LAYOUTS:
        raise ValueError(f'layout "{layout}" is none of {", ".join(LAYOUTS)}')
    builtin = layer.activation == "swiglu" and layer.experts is None
    if not builtin or len(layer.up_bias) > 0 or layer.router is None:
        raise ValueError(f'layout "{layout}" has experts of SwiGLU without biases and a router; the layer has others')
    shared = LAYOUTS[layout][1]
    if layer.shared_up is not None and shared is None:
        raise ValueError(f'layout "{layout}" has no shared experts, but the layer has')
    if layer.shared_gate is not None and layout != "qwen":
        raise ValueError(f'layout "{layout}" has no gate of the shared experts, but the layer has')
    if layer.router_bias is not None and layout != "deepseek":
        raise ValueError(f'layout "{layout}" has no selection bias, but the layer has')


def _names_of(e: int, parts: tuple[str, ...], up: Tensor, down: Tensor) -> dict[str, Tensor]:
    """Matrices of expert e by name."""
    return {f"experts.{e}.{n}.weight": t for n, t in zip(parts, [*up.chunk(2), down], strict=True)}


def _unstacked(tensors: Mapping[str, Tensor], parts: tuple[str, ...], experts: int) -> dict[str, Tensor]:
    """Tensors expert by expert."""
    stacks = {name: tensors.get(name) for name in ("experts.gate_up_proj", "experts.down_proj")}
    for name, stack in stacks.items():
        if stack is None or len(stack) != experts:
            found = "missing" if stack is None else f"of {len(stack)} experts"
            raise ValueError(f"{name} is {found}, but the layer has {experts} experts")
    made = {name: tensor for name, tensor in tensors.items() if name not in stacks}
    for e, (up, down) in enumerate(zip(*stacks.values(), strict=True)):
        made |= _names_of(e, parts, up, down)
    return made


def weights_of(layer: MoELayer, layout: str, stacked: bool = False) -> dict[str, Tensor]:
    """Return the weights of a layer as a layout names them, relative to the mixture block.

    Args:
        layer: layer with activation ``"swiglu"`` and without biases of experts.
        layout: ``"mixtral"``, ``"deepseek"`` (V2 and V3) or ``"qwen"`` (Qwen2-MoE and Qwen3-MoE).
        stacked: False: a matrix for each expert, as in checkpoints on the Hugging Face Hub. True: as in modules of
            transformers 5, ``experts.gate_up_proj`` (E, 2 ffn_width, width) and ``experts.down_proj``. A layer with a
            ``group`` has no stacked weights.

    Returns:
        Detached tensors by name. A layer with a ``group`` gives the experts of this rank.

    Raises:
        ValueError: an unknown layout, or one that lacks a part of the layer.
    """
    _check(layer, layout)
    parts, shared = LAYOUTS[layout]
    found = {"gate.weight": layer.router.detach()}
    if stacked and len(layer.up) < layer.num_experts:
        raise ValueError(f"stacked=True needs all {layer.num_experts} experts; this rank has {len(layer.up)}")
    if stacked:
        found["experts.gate_up_proj"] = torch.stack([up.detach() for up in layer.up])
        found["experts.down_proj"] = torch.stack([down.detach() for down in layer.down])
    else:
        for e in layer.up.own:
            found |= _names_of(e, parts, layer.up[e].detach(), layer.down[e].detach())
    if layer.router_bias is not None:
        found["gate.e_score_correction_bias"] = layer.router_bias.detach()
    if layer.shared_up is not None:
        for name, tensor in zip(SHARED, [*layer.shared_up.detach().chunk(2), layer.shared_down.detach()], strict=True):
            found[f"{shared}.{name}.weight"] = tensor
    if layer.shared_gate is not None:
        found["shared_expert_gate.weight"] = layer.shared_gate.detach()
    return found


@torch.no_grad()
def load_weights(layer: MoELayer, tensors: Mapping[str, Tensor], layout: str) -> None:
    """Copy weights into a layer; the inverse of :func:`weights_of`.

    A layer with a ``group`` takes its own experts. It passes over the others.

    Args:
        layer: layer of the same sizes.
        tensors: tensors by name, relative to the mixture block, stacked or expert by expert. Mixtral's block may be
            called ``block_sparse_moe``; give the names below it.
        layout: as in :func:`weights_of`.

    Raises:
        ValueError: a tensor is missing, unknown or of another shape, by name.
    """
    own = weights_of(layer, layout)
    if "experts.gate_up_proj" in tensors:
        tensors = _unstacked(tensors, LAYOUTS[layout][0], layer.num_experts)
    elsewhere = tuple(f"experts.{e}." for e in range(layer.num_experts) if e not in layer.up.own)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(elsewhere)}
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or unknown:
        raise ValueError(
            f'layout "{layout}": '
            + "; ".join(
                f"{what}: {', '.join(names[:4])}{' ...' if len(names) > 4 else ''}"
                for what, names in [("missing", missing), ("unknown", unknown)]
                if names
            )
        )
    for name, tensor in tensors.items():
        if own[name].shape != tensor.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, but the layer needs {tuple(own[name].shape)}")
    for name, tensor in tensors.items():
        own[name].copy_(tensor)  # a view of the layer's parameter


def from_transformers(block: nn.Module) -> tuple[MoELayer, str]:
    """Make a layer that computes what a mixture block of transformers does, with copies of its weights.

    Args:
        block: block of Mixtral, DeepSeek-V2, DeepSeek-V3, Qwen2-MoE or Qwen3-MoE.

    Returns:
        The layer, without losses, and the name of its layout. ``layer(x)[0]`` is ``block(x)``.

    Raises:
        ValueError: a block of another class, or one with an option that the layer lacks.
    """
    kind = type(block).__name__
    layouts = {
        "MixtralSparseMoeBlock": "mixtral",
        "DeepseekV2Moe": "deepseek",
        "DeepseekV3MoE": "deepseek",
        "Qwen2MoeSparseMoeBlock": "qwen",
        "Qwen3MoeSparseMoeBlock": "qwen",
    }
    if kind not in layouts:
        raise ValueError(f"{kind} is none of {', '.join(layouts)}")
    gate, experts = block.gate, block.experts
    if not isinstance(experts.act_fn, nn.SiLU) and type(experts.act_fn).__name__ != "SiLUActivation":
        raise ValueError(f"{kind}: its experts have {type(experts.act_fn).__name__}, but the layer has SwiGLU")
    tensors = dict(block.state_dict())
    options = {"load_loss": 0.0, "scale": float(getattr(gate, "routed_scaling_factor", 1.0))}
    normalizes = kind == "MixtralSparseMoeBlock" or getattr(gate, "norm_topk_prob", False)
    if normalizes and gate.top_k == 1:
        raise ValueError(f"{kind}: one expert a token with a weight of 1; the layer's weight is its score")
    options["normalize"] = "before" if normalizes else "none"
    if "gate.e_score_correction_bias" in tensors:
        options |= {"score": "sigmoid", "bias_update_rate": 0.0}
    by_groups = getattr(gate, "topk_method", "") == "group_limited_greedy" or kind == "DeepseekV3MoE"
    if by_groups and gate.num_group > gate.topk_group:
        groups = {"num_groups": gate.num_group, "top_groups": gate.topk_group}
        options |= groups | {"group_score": "max" if kind == "DeepseekV2Moe" else "top2"}
    count, width, ffn_width = experts.down_proj.shape
    shared = LAYOUTS[layouts[kind]][1]
    shared_width = tensors[f"{shared}.down_proj.weight"].shape[1] if f"{shared}.down_proj.weight" in tensors else 0
    if shared_width % ffn_width != 0:
        raise ValueError(f"{kind}: its shared width {shared_width} is no multiple of an expert's, {ffn_width}")
    layer = MoELayer(
        width,
        ffn_width,
        count,
        gate.top_k,
        device=experts.down_proj.device,
        dtype=experts.down_proj.dtype,
        shared_experts=shared_width // ffn_width,
        shared_gate="shared_expert_gate.weight" in tensors,
        **options,
    )
    load_weights(layer, tensors, layouts[kind])
    return layer.train(block.training), layouts[kind]
