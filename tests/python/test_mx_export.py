"""MX weights go out in torchao's safetensors layout; torchao and transformers read them back."""

import json
import sys
from pathlib import Path

import pytest
import torch
from dovetail import mx

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from cli import dovetail, dovetail_json
from tiny_run import make_workspace

pytest.importorskip("torchao")
transformers = pytest.importorskip("transformers")

# Recipe: format and scale_mode of its weights, in Dovetail's words and in torchao's.
RECIPES = {
    "mxfp8": ("e4m3", "round_up", "float8_e4m3fn", "RCEIL"),
    "mxfp8_floor": ("e4m3", "floor", "float8_e4m3fn", "FLOOR"),
    "e5m2": ("e5m2", "round_up", "float8_e5m2", "RCEIL"),
    "mxfp4": ("e2m1", "round_up", "float4_e2m1fn_x2", "RCEIL"),
}
OWN_RECIPES = """
[[precision.recipes]]
name = "square"
weight = { blocks = "32x32" }
[[precision.recipes]]
name = "e5m2"
weight = { format = "e5m2" }
activation = { format = "e5m2" }
"""


def train(folder, *settings):
    settings = [*settings, "data.tokenizer.kind=bpe", "data.tokenizer.vocab_size=300"]
    dovetail("train", "run.toml", *(w for s in settings for w in ("--set", s)), folder=folder)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = make_workspace(tmp_path_factory.mktemp("export_mx"))
    text = (folder / "run.toml").read_text().replace('recipe = "fp32"\n', 'recipe = "mxfp8"\n' + OWN_RECIPES)
    (folder / "run.toml").write_text(text.replace("width = 32", "width = 64"))
    train(folder, "run.folder=run", "train.steps=12")
    dovetail("export", "run", "--out", "bf16", "--precision", "bf16", folder=folder)
    return folder


def plain_tensors(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def torchao_tensors(folder):
    """The file's tensors as torchao makes them: MXTensor for quantized weights."""
    from safetensors import safe_open
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    with safe_open(folder / "model.safetensors", framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        tensors, unknown = unflatten_tensor_state_dict(stored, file.metadata())
    assert not unknown
    return tensors


@pytest.mark.parametrize("recipe", RECIPES)
def test_torchao_reads_the_numbers_that_training_multiplies(workspace, recipe):
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    result = dovetail_json("export", "run", "--out", recipe, "--precision", recipe, folder=workspace)
    assert result["precision"] == {"recipe": recipe, "linears": 9, "quantized_linears": 8}
    plain, read = plain_tensors(workspace / "bf16"), torchao_tensors(workspace / recipe)
    assert plain.keys() == read.keys()
    format, scale_mode, element, scaling = RECIPES[recipe]
    count = 0
    for name, weight in plain.items():
        theirs = read[name]
        if "_proj" not in name:
            assert type(theirs) is torch.Tensor and theirs.dtype == weight.dtype
            assert torch.equal(theirs, weight)
            continue
        count += 1
        assert isinstance(theirs, MXTensor) and theirs.shape == weight.shape and theirs.dtype == torch.bfloat16
        numbers = theirs.dequantize(torch.bfloat16)
        codes, scales = mx.quantize(weight, format, scale_mode)
        assert torch.equal(numbers, mx.dequantize(codes, scales, format, dtype=torch.bfloat16)), name
        # torchao's own quantization gives the same file.
        own = MXTensor.to_mx(weight, getattr(torch, element), 32, ScaleCalculationMode[scaling])
        assert torch.equal(theirs.scale.view(torch.uint8), own.scale.view(torch.uint8))
        assert torch.equal(theirs.qdata.view(torch.uint8), own.qdata.view(torch.uint8))
        assert theirs.act_quant_kwargs.elem_dtype == getattr(torch, element)
        assert theirs.act_quant_kwargs.scaling_mode == ScaleCalculationMode[scaling]
    assert count == 2 * 7


def test_square_blocks_repeat_their_scale(workspace):
    dovetail("export", "run", "--out", "square", "--precision", "square", folder=workspace)
    plain, read = plain_tensors(workspace / "bf16"), torchao_tensors(workspace / "square")
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        weight = plain[f"model.layers.0.{name}.weight"]
        scales = read[f"model.layers.0.{name}.weight"].scale.view(torch.uint8)
        amax = weight.float().abs().unflatten(1, (-1, 32)).amax(2).unflatten(0, (-1, 32)).amax(1)
        expected = mx.quantize(amax.reshape(-1, 1).expand(-1, 32))[1].view(amax.shape)
        assert torch.equal(scales, expected.repeat_interleave(32, 0))


def mean_loss(model, ids):
    nats = tokens = 0
    context = model.config.max_position_embeddings
    for begin in range(0, len(ids) - 1, context):
        window = ids[begin : begin + context + 1]
        with torch.no_grad():
            log_p = torch.log_softmax(model(window[None, :-1]).logits[0].double(), -1)
        nats -= log_p.gather(1, window[1:, None]).sum().item()
        tokens += len(window) - 1
    return nats / tokens


@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp4"])
def test_transformers_loads_the_folder_and_computes_the_loss_of_eval(workspace, recipe):
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    out = f"hf_{recipe}"
    dovetail("export", "run", "--out", out, "--precision", recipe, folder=workspace)
    config = json.loads((workspace / out / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16"
    assert config["quantization_config"]["quant_method"] == "torchao"
    model = transformers.AutoModelForCausalLM.from_pretrained(workspace / out, dtype="auto").eval()
    kinds = {name: isinstance(weight, MXTensor) for name, weight in model.named_parameters()}
    assert sum(kinds.values()) == 14 and all(("_proj" in name) == kind for name, kind in kinds.items())
    (workspace / "held_out.txt").write_text("two gears mesh and neither waits for the other while data flows\n" * 40)
    dovetail(
        "prepare", "held_out.txt", "--out", f"held_{recipe}", "--tokenizer", workspace / out / "tokenizer.json",
        "--set", "data.validation_split=tail", "--set", "data.validation_fraction=0.5", folder=workspace,
    )  # fmt: skip
    data = dovetail_json("inspect", f"held_{recipe}", folder=workspace)
    words = ["--data", f"held_{recipe}", "--precision", recipe]
    ours = dovetail_json("eval", "run", *words, folder=workspace)["validation"]["nats_per_token"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(workspace / out)
    text = (workspace / "held_out.txt").read_text()
    held_out = text[len(text) - data["validation_bytes"] :]
    ids = tokenizer(held_out, add_special_tokens=False)["input_ids"] + [data["end_of_document"]]
    assert mean_loss(model, torch.tensor(ids)) == pytest.approx(ours, rel=5e-3)


def test_what_torchao_cannot_hold_is_refused_by_name(workspace):
    def refused(recipe, run="run"):
        words = ["export", run, "--out", "never", "--precision", recipe]
        return dovetail_json(*words, folder=workspace, code=2)["error"]["message"]

    first = "blocks.0.attention.qkv"
    assert first in refused("mxfp6_e3m2") and "e3m2" in refused("mxfp6_e3m2")
    assert "blocks of 128x128" in refused("fp8_block")
    assert "the weight is e4m3 and the activation e5m2" in refused("mxfp8_e5m2_act")
    gpt2 = ["model.norm=layernorm", "model.activation=gelu", "model.bias=true", "model.positions=learned"]
    train(workspace, "run.folder=gpt2", "train.steps=2", "schedule.warmup_steps=1", *gpt2)
    assert "llama" in refused("mxfp8", "gpt2")
    assert not (workspace / "never").exists()
