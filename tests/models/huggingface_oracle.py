"""Models of `transformers` for tests/models/huggingface_test.cpp.

usage: huggingface_oracle.py make|check FOLDER

- make: writes small random models NAME/ with NAME/expected.safetensors (tokens, logits), and tokenizer.json
- check: loads every exported model NAME/ and compares its logits and tokenizer with these files
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

TEXT = "The quick brown fox, 42 times:\n\tdéjà vu — naïve “café” 😀 don't\n"


SIZES = dict(
    num_hidden_layers=2,
    hidden_size=48,
    num_attention_heads=6,
    num_key_value_heads=2,
    intermediate_size=40,
    max_position_embeddings=24,
    vocab_size=70,
    initializer_range=0.2,
    use_cache=False,
)


def llama(**changes):
    return LlamaForCausalLM(LlamaConfig(**(SIZES | dict(rms_norm_eps=1e-5) | changes)))


def mixtral(**changes):
    return MixtralForCausalLM(MixtralConfig(**(SIZES | dict(num_local_experts=5, num_experts_per_tok=2) | changes)))


def gpt2(**changes):
    sizes = dict(n_layer=2, n_embd=40, n_head=4, n_positions=24, vocab_size=70, initializer_range=0.2, use_cache=False)
    return GPT2LMHeadModel(GPT2Config(**(sizes | changes)))


def edit(source, target, config=None, tensors=None, drop=()):
    """A copy of a made model with other keys and tensors; expected is what transformers loads from the copy."""
    shutil.copytree(source, target)
    settings = json.loads((target / "config.json").read_text()) | (config or {})
    settings = {key: value for key, value in settings.items() if value != "absent"}
    (target / "config.json").write_text(json.dumps(settings))
    if tensors or drop:
        kept = {k: v for k, v in load_file(target / "model.safetensors").items() if k not in drop}
        save_file(kept | (tensors or {}), target / "model.safetensors", {"format": "pt"})
    expect(target)


def expect(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = load_file(folder / "expected.safetensors")["tokens"]
    with torch.no_grad():
        logits = model(tokens).logits
    save_file({"tokens": tokens, "logits": logits.contiguous()}, folder / "expected.safetensors")


def make_variants(folder):
    """Folders as other programs and older versions leave them."""
    tied, gpt2_tied, mixtral_tied = folder / "llama_tied", folder / "gpt2", folder / "mixtral"
    embedding = load_file(tied / "model.safetensors")["model.embed_tokens.weight"]
    head = torch.randn(70, 48)
    edit(tied, folder / "own_head", tensors={"lm_head.weight": head})
    edit(tied, folder / "equal_head", tensors={"lm_head.weight": embedding.clone()})
    edit(tied, folder / "head_alone", tensors={"lm_head.weight": head}, drop=["model.embed_tokens.weight"])
    edit(gpt2_tied, folder / "gpt2_own_head", tensors={"lm_head.weight": torch.randn(70, 40)})
    edit(gpt2_tied, folder / "gpt2_untied", {"tie_word_embeddings": False}, {"lm_head.weight": torch.randn(70, 40)})
    edit(gpt2_tied, folder / "gpt2_tanh", {"activation_function": "gelu_pytorch_tanh"})
    edit(mixtral_tied, folder / "mixtral_own_head", {"tie_word_embeddings": True})
    rope = {"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}
    edit(tied, folder / "hidden_rope", rope | {"rope_theta": 300.0})
    edit(tied, folder / "no_window", {"sliding_window": 4096, "hidden_act": "swish"})
    half = {k: v.bfloat16() for k, v in load_file(folder / "llama_untied" / "model.safetensors").items()}
    edit(folder / "llama_untied", folder / "half", {"torch_dtype": "bfloat16"}, half)
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, 8, 2) / 8)
    edit(tied, folder / "old_rotary", tensors={f"model.layers.{i}.self_attn.rotary_emb.inv_freq": frequencies.bfloat16()
                                               for i in range(2)})  # fmt: skip
    masks = {f"transformer.h.{i}.attn.bias": torch.ones(24, 24).tril().bool()[None, None] for i in range(2)}
    values = {f"transformer.h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(2)}
    edit(gpt2_tied, folder / "old_masks", tensors=masks | values)

    shutil.copytree(folder / "llama_sharded", folder / "whole_and_index")
    whole = load_file(folder / "llama_untied" / "model.safetensors")
    save_file(whole, folder / "whole_and_index" / "model.safetensors", {"format": "pt"})
    expect(folder / "whole_and_index")
    shutil.copytree(folder / "llama_sharded", folder / "short_index")
    index_path = folder / "short_index" / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    shards = list(index["weight_map"].values())
    unlisted = next(name for name, shard in index["weight_map"].items() if shards.count(shard) > 1)
    del index["weight_map"][unlisted]
    index_path.write_text(json.dumps(index))
    expect(folder / "short_index")


def make(folder):
    torch.manual_seed(1)
    rope = {"rope_type": "default", "rope_theta": 500.0}
    cases = {
        "llama_untied": (llama(rope_parameters=rope), {}),
        "llama_tied": (llama(tie_word_embeddings=True, rms_norm_eps=1e-3), {}),
        "llama_head_dim": (llama(num_key_value_heads=6, head_dim=10), {}),
        "llama_sharded": (llama(), {"max_shard_size": "20KB"}),
        "mixtral": (mixtral(), {}),
        "mixtral_top3": (mixtral(num_experts_per_tok=3, tie_word_embeddings=True), {"max_shard_size": "20KB"}),
        "gpt2": (gpt2(), {}),
        "gpt2_inner": (gpt2(n_inner=44, layer_norm_epsilon=1e-3), {}),
        "gpt2_bare": (gpt2(), {}),
        "mixtral_kv": (mixtral(hidden_size=64, num_attention_heads=16, num_key_value_heads=8), {}),
    }
    for name, (model, options) in cases.items():
        model.eval()
        with torch.no_grad():
            for parameter in model.parameters():  # norms and biases away from 1 and 0
                if parameter.dim() == 1:
                    parameter.add_(0.3 * torch.randn_like(parameter))
            tokens = torch.randint(70, (2, 24))
            logits = model(tokens).logits
        # GPT-2's own files hold the transformer without the head and without its prefix.
        (model.transformer if name == "gpt2_bare" else model).save_pretrained(folder / name, **options)
        save_file({"tokens": tokens, "logits": logits.contiguous()}, folder / name / "expected.safetensors")

    edit(folder / "mixtral_kv", folder / "mixtral_default_kv", {"num_key_value_heads": "absent"})
    make_variants(folder)

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def check_tokenizer(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if folder.name.endswith("_bpe"):
        expected = Tokenizer.from_file(str(folder.parent / "tokenizer.json")).encode(TEXT).ids
    else:
        expected = list(TEXT.encode())
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    assert ids == expected, f"{folder.name}: {ids} is not {expected}"
    assert tokenizer.decode(ids) == TEXT, f"{folder.name}: {tokenizer.decode(ids)!r}"
    config = json.loads((folder / "config.json").read_text())
    assert tokenizer.eos_token == "<|endoftext|>" and tokenizer.eos_token_id == config["eos_token_id"], folder.name


def check(folder):
    checked = 0
    for path in sorted(folder.glob("*/expected.safetensors")):
        expected = load_file(path)
        model, info = AutoModelForCausalLM.from_pretrained(path.parent, output_loading_info=True)
        problems = {key: list(value) for key, value in info.items() if key != "error_msgs" and value}
        assert not problems, f"{path.parent.name}: {problems}"
        assert model.dtype == torch.float32, f"{path.parent.name}: {model.dtype}"
        with torch.no_grad():
            logits = model.eval()(expected["tokens"]).logits
        error = (logits - expected["logits"]).abs().max() / expected["logits"].abs().max()
        assert logits.shape == expected["logits"].shape and error < 1e-5, f"{path.parent.name}: error {error}"
        check_tokenizer(path.parent)
        checked += 1
    assert checked > 0, f"no model in {folder}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    {"make": make, "check": check}[sys.argv[1]](pathlib.Path(sys.argv[2]))
