"""Which Linears dovetail.mx.convert changes: ten architectures of Hugging Face, and models of torch."""

import copy
import dataclasses
import pickle

import dovetail
import pytest
import torch
from mx_models import Gpt, llama
from torch import nn

transformers = pytest.importorskip("transformers")


def build(name, auto="AutoModelForCausalLM", **sizes):
    config = getattr(transformers, f"{name}Config")(**sizes)
    return getattr(transformers, auto).from_config(config)


WIDTHS = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=96)
GROUPED = dict(WIDTHS, num_key_value_heads=2)
ATTENTION = [f"self_attn.{p}_proj" for p in "qkvo"]
GATED = [f"mlp.{p}_proj" for p in ("gate", "up", "down")]


def in_blocks(prefix, names, blocks=2):
    return {f"{prefix}.{i}.{name}" for i in range(blocks) for name in names}


# A model, and the names of the modules that change.
TABLE = {
    "llama": (lambda: build("Llama", **GROUPED), in_blocks("model.layers", ATTENTION + GATED)),
    "mistral": (lambda: build("Mistral", head_dim=16, **GROUPED), in_blocks("model.layers", ATTENTION + GATED)),
    "qwen2": (lambda: build("Qwen2", **GROUPED), in_blocks("model.layers", ATTENTION + GATED)),
    "gemma": (lambda: build("Gemma", head_dim=16, **GROUPED), in_blocks("model.layers", ATTENTION + GATED)),
    "phi": (
        lambda: build("Phi", **WIDTHS),
        in_blocks(
            "model.layers", [f"self_attn.{p}" for p in ("q_proj", "k_proj", "v_proj", "dense")] + ["mlp.fc1", "mlp.fc2"]
        ),
    ),
    "gpt2": (
        lambda: build("GPT2", n_embd=64, n_layer=2, n_head=2, vocab_size=96),
        in_blocks("transformer.h", ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]),
    ),
    "opt": (
        lambda: build("OPT", ffn_dim=128, word_embed_proj_dim=32, **{k: WIDTHS[k] for k in WIDTHS if "inter" not in k}),
        in_blocks("model.decoder.layers", [f"self_attn.{p}_proj" for p in ("q", "k", "v", "out")] + ["fc1", "fc2"]),
    ),
    "gpt_neox": (
        lambda: build("GPTNeoX", **WIDTHS),
        in_blocks(
            "gpt_neox.layers",
            ["attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"],
        ),
    ),
    "bert": (
        lambda: build("Bert", "AutoModelForSequenceClassification", **WIDTHS),
        in_blocks(
            "bert.encoder.layer",
            [f"attention.self.{p}" for p in ("query", "key", "value")]
            + ["attention.output.dense", "intermediate.dense", "output.dense"],
        ),
    ),
    "t5": (
        lambda: build(
            "T5",
            "AutoModelForSeq2SeqLM",
            d_model=64,
            d_kv=16,
            d_ff=128,
            num_layers=2,
            num_heads=4,
            vocab_size=96,
            decoder_start_token_id=0,
        ),
        in_blocks(
            "encoder.block",
            [f"layer.0.SelfAttention.{p}" for p in "qkvo"] + ["layer.1.DenseReluDense.wi", "layer.1.DenseReluDense.wo"],
        )
        | in_blocks(
            "decoder.block",
            [f"layer.0.SelfAttention.{p}" for p in "qkvo"]
            + [f"layer.1.EncDecAttention.{p}" for p in "qkvo"]
            + ["layer.2.DenseReluDense.wi", "layer.2.DenseReluDense.wo"],
        ),
    ),
}


def changed(model):
    return {name for name, module in model.named_modules() if isinstance(module, dovetail.mx.modules.Quantized)}


@pytest.mark.parametrize("name", TABLE)
def test_linears_of_blocks_change_and_no_others(name):
    make, expected = TABLE[name]
    model = make()
    parameters = dict(model.named_parameters())
    assert changed(dovetail.mx.convert(model)) == expected
    assert {n: id(p) for n, p in model.named_parameters()} == {n: id(p) for n, p in parameters.items()}
    tokens = torch.randint(1, 96, (2, 32))
    labels = torch.tensor([0, 1]) if name == "bert" else tokens
    model(input_ids=tokens, labels=labels).loss.backward()
    gradients = [model.get_submodule(layer).weight.grad for layer in expected]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


def test_conv1d_is_the_linear_of_its_transpose():
    model = TABLE["gpt2"][0]()
    plain = model.transformer.h[0].mlp.c_fc
    x, weight = torch.randn(40, 64), plain.weight.detach()
    dovetail.mx.convert(model)
    assert isinstance(plain, transformers.pytorch_utils.Conv1D)
    y = plain(x.view(2, 20, 64))
    trained = weight.t().contiguous().requires_grad_()
    expected = dovetail.mx.linear(x, trained, plain.bias)
    assert torch.equal(y.view(40, -1), expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    assert torch.equal(plain.weight.grad, trained.grad.t())
    assert "recipe=mxfp8" in repr(plain)
    for twin in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
        assert torch.equal(twin(x), expected)


def test_head_and_tied_weights_stay_and_can_be_chosen():
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.first, self.head = nn.Embedding(96, 64), nn.Linear(64, 64), nn.Linear(64, 96)
            self.head.weight = self.embedding.weight

    assert changed(dovetail.mx.convert(Mlp())) == {"first"}
    assert changed(dovetail.mx.convert(Mlp(), layers=["*"])) == {"first", "head"}
    assert "lm_head" not in changed(dovetail.mx.convert(llama()))
    assert changed(dovetail.mx.convert(Gpt(tied=False), layers=["head"])) == {"head"}
    with pytest.raises(ValueError, match=r"nothing of Mlp would be quantized.*first, head"):
        dovetail.mx.convert(Mlp(), filter=lambda module, name: False)


def test_a_filter_and_globs_must_agree():
    def wide(module, name):
        return module.out_features >= 192

    assert changed(dovetail.mx.convert(Gpt(2), filter=wide)) == in_blocks("blocks", ["qkv", "up"])
    assert changed(dovetail.mx.convert(Gpt(2), layers=["blocks.1.*"], filter=wide)) == {"blocks.1.qkv", "blocks.1.up"}
    assert changed(dovetail.mx.convert(Gpt(2), filter=lambda m, name: name.endswith("head"))) == {"head"}


def test_high_precision_ends_are_obeyed():
    assert changed(dovetail.mx.convert(Gpt(4), "fp8_tensor")) == {
        name for name in in_blocks("blocks", ["qkv", "out", "up", "down"], 4) if name[7] in "12"
    }
    assert changed(dovetail.mx.convert(Gpt(4), "fp8_tensor", layers=["blocks.*.up"])) == {"blocks.1.up", "blocks.2.up"}
    both = dataclasses.replace(dovetail.mx.find_recipe("mxfp8"), high_precision_ends=2)
    assert {name[7] for name in changed(dovetail.mx.convert(Gpt(5), both))} == {"2"}
    with pytest.raises(ValueError, match=r"fp8_tensor keeps 1 blocks at each end.*nothing would be quantized"):
        dovetail.mx.convert(Gpt(2), "fp8_tensor")
    with pytest.raises(ValueError, match="no stack of blocks"):
        dovetail.mx.convert(nn.Sequential(nn.Linear(32, 32)), "fp8_tensor")
    with pytest.raises(RuntimeError, match=r"fp8_tensor_delayed.*earlier steps"):
        dovetail.mx.convert(Gpt(), "fp8_tensor_delayed")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torchs_encoder_is_quantized_also_in_inference():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 8, 32)
    padding = torch.zeros(2, 8, dtype=torch.bool)
    padding[1, 6:] = True

    def outputs():
        with torch.no_grad():
            return model(x), model(x, src_key_padding_mask=padding)[:, :6]

    plain = outputs()
    dovetail.mx.convert(model, "mxfp4", layers=["*linear*"])
    for ours, theirs in zip(outputs(), plain, strict=True):
        assert 1e-3 < (ours - theirs).norm() / theirs.norm() < 0.5
    trained = model.train()(x)  # without the fast path
    model.eval()
    torch.testing.assert_close(outputs()[0], trained.detach(), rtol=1e-4, atol=1e-4)
    for module in (nn.MultiheadAttention(32, 2), nn.TransformerEncoder(layer, 2)):
        with pytest.raises(ValueError, match=r"out_proj is the output projection of torch\.nn\.MultiheadAttention"):
            dovetail.mx.convert(module)


def test_a_recipe_of_ones_own_has_a_format_for_each_operand():
    Operand, Recipe = dovetail.mx.Operand, dovetail.mx.Recipe
    mine = Recipe("mine", gradient=Operand("e5m2"))
    x, weight, dy = torch.randn(40, 64), torch.randn(32, 64), torch.randn(40, 32)

    def products(recipe):
        a, b = x.clone().requires_grad_(), weight.clone().requires_grad_()
        y = dovetail.mx.linear(a, b, None, recipe)
        y.backward(dy)
        return y, a.grad, b.grad

    for ours, theirs in zip(products(mine), products("mxfp8_e5m2_grad"), strict=True):
        assert torch.equal(ours, theirs)
    for name in ("mxfp8", "mxfp4", "fp8_block_float32", "fp8_tensor", "mxfp6_e2m3"):
        for ours, theirs in zip(products(dovetail.mx.find_recipe(name)), products(name), strict=True):
            assert torch.equal(ours, theirs)
    assert dovetail.mx.find_recipe("mxfp8_e5m2_grad") == dataclasses.replace(mine, name="mxfp8_e5m2_grad")
    assert dovetail.mx.find_recipe("fp8_tensor").high_precision_ends == 1
    weight_only = Recipe(activation=Operand("none"), gradient=Operand("none"))
    y, _, dw = products(weight_only)
    torch.testing.assert_close(dw, dy.T @ x)
    rounded = dovetail.mx.dequantize(*dovetail.mx.quantize(weight))
    torch.testing.assert_close(y, x @ rounded.T)
    assert "recipe=mine" in repr(dovetail.mx.Linear(64, 32, recipe=mine))
    twin = pickle.loads(pickle.dumps(mine))
    assert twin == mine and str(twin) == str(mine)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(weight=("e4m4",)), "e4m4.*did you mean .e4m3"),
        (dict(activation=("e4m3", "32x32")), r"recipe \"custom\": activation cannot have blocks of 32x32"),
        (dict(weight=("e4m3", "1x32", "round_up", 0, "stochastic")), "cannot be rounded stochastically"),
        (dict(gradient=("e2m1", "tensor")), "cannot be e2m1"),
        (dict(weight=("e4m3", "tensor", "float32", 16)), "earlier steps"),
        (dict(gemm="fast"), "fast.*emulated.*native"),
        (dict(gemm="native", weight=("e2m1",)), "weight"),
        (dict(high_precision_ends=-1), "high_precision_ends"),
    ],
)
def test_a_wrong_recipe_names_what_is_wrong(options, message):
    options = {key: dovetail.mx.Operand(*v) if isinstance(v, tuple) else v for key, v in options.items()}
    with pytest.raises(RuntimeError, match=message):
        dovetail.mx.Recipe(**options)


def test_native_products_are_refused_on_a_cpu():
    native = dataclasses.replace(dovetail.mx.find_recipe("mxfp8"), gemm="native")
    with pytest.raises(RuntimeError, match=r"the CPU"):
        dovetail.mx.linear(torch.randn(32, 64), torch.randn(32, 64), None, native)


def test_an_unknown_recipe_and_another_subclass_are_errors():
    class Mine(nn.Linear):
        pass

    with pytest.raises(ValueError, match=r"0 is a Mine, whose own forward"):
        dovetail.mx.convert(nn.Sequential(Mine(32, 32)))
    with pytest.raises(RuntimeError, match="mxfp9"):
        dovetail.mx.convert(Gpt(), "mxfp9")
