"""Each key of the config is honoured or refused. The table has an entry for each key that the program knows.

An entry holds settings. The first one sets the key. `refused`: they are an error that names the key. `shown`: the
dry run prints something else with the first setting than without it. `trained`: four steps write other files.
`warned`: one rank warns of the key. `resource`: the results are the same, and time or memory may differ.
"""

import json
import random
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from cli import dovetail
from tiny_run import BINARY, make_workspace

GPT = """
[run]
name = "keys"
device = "cpu"
threads = 1
[model]
layers = 2
width = 32
heads = 2
context = 32
[data]
text = ["text"]
path = "DATA"
validation_fraction = 0.1
validation_split = "tail"
[train]
steps = 4
batch = 4
[precision]
recipe = "fp32"
"""
MIXTURE = GPT + "[model.moe]\nexperts = 4\nffn_width = 16\n"
ROWS = """
[run]
name = "keys"
device = "cpu"
threads = 1
[recommender]
model = "wide_deep"
dim = 4
deep = [8]
[rows]
files = ["rows.tsv"]
label = "clicked"
dense = [{ columns = ["price"] }]
sparse = [{ columns = ["user"], num_rows = 30 }, { columns = ["item"], num_rows = 50 }]
[train]
steps = 4
batch = 32
[precision]
recipe = "fp32"
"""
IMAGES = """
[run]
name = "keys"
device = "cpu"
threads = 1
[vision]
model = "resnet50"
classes = 3
height = 32
width = 32
base_width = 2
[images]
train = "x.npy"
targets = "y.npy"
[train]
steps = 4
batch = 8
"""
BASES = {"gpt": GPT, "moe": MIXTURE, "rows": ROWS, "images": IMAGES}

USER, ITEM = '{columns="user",num_rows=30}', '{columns="item",num_rows=50}'
SEEN = '{columns="seen",num_rows=50,separator="|",sequence=true,max_length=3,table="item"}'
HASHED = '{columns="user",max_rows=20}'


def sparse(*features):
    return f"rows.sparse=[{','.join(features)}]"


def dense(entry):
    return f"rows.dense=[{entry}]"


SEQUENCES = sparse(USER, ITEM, SEEN)


def table(how, base, settings):
    return {key: (how, base, [f"{key}={value}", *others]) for key, (value, *others) in settings.items()}


def in_list(how, base, settings):
    """Keys of a list's entries: the list with the key, and without it."""
    return {key: (how, base, given, others) for key, (given, *others) in settings.items()}


def override(*entries):
    return f"embedding.override=[{','.join(entries)}]"


def placement(*entries):
    return f"embedding.placement=[{','.join(entries)}]"


def recipe(operand, keys):
    return f'precision.recipes=[{{name="mine",{operand}={{{keys}}}}}]'


def other_recipe(*keys):
    return f"precision.override=[{{{','.join(keys)}}}]"


QUANTIZED = ["precision.recipe=mxfp8"]
OWN = ["precision.recipe=mine"]
PARTS = ["data.text=[]", "data.path=''"]
A, B = '{path="data/a"}', '{path="data/b"}'
ENTRIES = {
    **table(
        "shown",
        "gpt",
        {
            "run.name": ("other", "run.folder=", "data.path="),
            "model.preset": ("gpt2-124m", "model.width=64"),
            "model.layers": ("3",),
            "model.width": ("64",),
            "model.kv_heads": ("1",),
            "model.head_dim": ("8",),
            "model.ffn_width": ("48",),
            "model.context": ("16",),
            "model.vocab_size": ("512",),
            "model.activation": ("gelu",),
            "model.positions": ("learned",),
            "model.bias": ("true",),
            "model.tied": ("false",),
            "model.moe.experts": ("4",),
            "train.batch": ("8",),
            "train.micro_batch": ("2",),
            "train.checkpoint_activations": ("true",),
            "precision.recipe": ("bf16",),
        },
    ),
    **table(
        "shown",
        "moe",
        {
            "model.moe.ffn_width": ("48",),
            "model.moe.shared_experts": ("1",),
            "model.moe.every": ("2",),
            "model.moe.k": ("1",),
        },
    ),
    **table(
        "trained",
        "gpt",
        {
            "run.folder": ("elsewhere",),
            "run.seed": ("2",),
            "run.threads": ("2",),
            "model.heads": ("4",),
            "model.norm": ("layernorm",),
            "model.norm_eps": ("0.1",),
            "model.init_std": ("0.1",),
            "data.text": ("['text/0.txt']", "data.path=other"),
            "data.validation_fraction": ("0.3", "data.path=other"),
            "data.validation_split": ("document", "data.path=other", "data.validation_fraction=0.3"),
            "data.path": ("'other'",),
            "data.deduplicate": ("true", "data.text=['twice']", "data.path=other"),
            "data.max_document_bytes": ("3000", "data.text=['twice']", "data.path=other"),
            "data.file_list": ("files.txt", "data.text=[]", "data.path=other"),
            "data.tokenizer.kind": ("bpe", "data.tokenizer.vocab_size=300", "data.path=other"),
            "train.steps": ("3",),
            "train.clip": ("0.01",),
            "train.init_noise": ("0.5",),
            "train.time_limit_s": ("1e-9",),
            "optimizer.lr": ("0.1",),
            "optimizer.betas": ("[0.5, 0.5]",),
            "optimizer.eps": ("1.0",),
            "optimizer.weight_decay": ("9.0", "optimizer.lr=0.01"),
            "schedule.warmup_steps": ("2",),
            "schedule.decay": ("linear",),
            "checkpoint.every_steps": ("2",),
            "checkpoint.keep": ("1", "checkpoint.every_steps=1"),
            "eval.every_steps": ("2",),
            "log.tensorboard": ("false",),
            "log.trace_steps": ("[2]",),
            "log.sample_prompts": ("['two ']",),
        },
    ),
    **table(
        "trained",
        "moe",
        {
            "model.moe.router": ("hash",),
            "model.moe.score": ("sigmoid",),
            "model.moe.normalize": ("none",),
            "model.moe.scale": ("3.0",),
            "model.moe.bias_update_rate": ("0.5",),
            "model.moe.load_loss": ("1.0",),
            "model.moe.z_loss": ("1.0",),
            "model.moe.num_groups": ("2", "model.moe.top_groups=1"),
            "model.moe.second_expert": ("random",),
            "model.moe.drop": ("position",),
        },
    ),
    **table(
        "trained",
        "rows",
        {
            "run.start_from": ("old",),
            "run.start_optimizer": ("new", "run.start_from=old"),
            "recommender.model": ("deepfm",),
            "recommender.deep": ("[9]",),
            "recommender.dim": ("5",),
            "recommender.grain": ("8",),
            "rows.files": ("other.tsv",),
            "rows.format": ("tsv", "rows.files=rows.csv"),
            "rows.group": ("user",),
            "rows.shuffle_window": ("1",),
            "rows.label": ("price > 20",),
            "eval.max_rows": ("8", "eval.every_steps=2"),
            "embedding.row_dtype": ("bf16",),
            "embedding.lr": ("0.5",),
            "embedding.initial_range": ("0.5",),
            "embedding.optimizer": ("sgd",),
            "embedding.weight_decay": ("1.0",),
            "embedding.packing": ("false",),
            "embedding.groups": ("2", "embedding.packing=false"),
            "rows.day": ("day", "train.steps=pass"),
        },
    ),
    **table(
        "shown",
        "images",
        {
            "vision.model": ("vgg16",),
            "vision.channels": ("1",),
            "vision.height": ("64",),
            "vision.width": ("64",),
            "vision.base_width": ("4",),
        },
    ),
    **table(
        "trained",
        "images",
        {
            "vision.classes": ("5",),
            "images.train": ("other.npy",),
            "images.targets": ("other_y.npy",),
            "images.validation": ("other.npy", "images.validation_targets=y.npy"),
            "images.validation_targets": ("other_y.npy", "images.validation=x.npy"),
            "images.validation_fraction": ("0.3",),
            "images.crop": ("random",),
            "images.mirror": ("false",),
            "images.mean": ("[0.1]",),
            "images.deviation": ("[0.9]",),
        },
    ),
    # Keys that another key, the task or the data leave without effect.
    **table(
        "refused",
        "gpt",
        {
            "model.rotary_fraction": ("0.5", "model.positions=learned"),
            "model.rotary_theta": ("500", "model.positions=learned"),
            "data.text_field": ("body",),
            "data.bad_row": ("skip",),
            "data.max_bad_rows": ("5",),
            "data.tokenizer.path": ("some.json",),
            "data.tokenizer.vocab_size": ("999",),
            "data.tokenizer.split": ("llama3",),
            "schedule.min_lr_ratio": ("0.3", "schedule.decay=constant"),
            "schedule.decay_fraction": ("0.3",),
            "precision.gemm": ("native",),
            "run.cuda_graph": ("on",),
            "run.attention": ("flash",),
            "memory.budget": ("0.5x", "train.checkpoint_activations=true"),
            "memory.folder": ("disk",),
            "memory.host_bytes": ("'1MiB'",),
            "memory.allow": ("['recompute']",),
            "memory.solve_s": ("3",),
            "eval.max_tokens": ("99", "eval.every_steps=0"),
            "log.quantization_every": ("5",),
            "log.experts_every": ("5",),
            "log.sample_tokens": ("5",),
            "parallel.expert": ("2",),
            "parallel.expert_tensor": ("2",),
            "parallel.r": ("0",),
            "parallel.overlap": ("2",),
            "parallel.shadow": ("1",),
            "parallel.all_to_all": ("2dh",),
            "parallel.ranks_per_node": ("2",),
            "parallel.dispatch": ("bf16",),
            "parallel.combine": ("bf16",),
            "parallel.costs": ("file.json",),
            "parallel.choose_every": ("5",),
            "balance.shares": ("[1]",),
            "balance.gain": ("0.2",),
            "balance.mode": ("fixed",),
        },
    ),
    **table(
        "refused",
        "moe",
        {
            "model.moe.top_groups": ("2",),
            "model.moe.group_score": ("max",),
            "model.moe.slot_order": ("token",),
            "model.moe.batch_prioritized": ("true",),
            "model.moe.capacity_rule": ("switch",),
            "model.moe.capacity_factor": ("2.0",),
            "model.moe.eval_capacity_factor": ("2.0",),
            "model.moe.pad_to_capacity": ("true",),
            "model.moe.draw_frees_slot": ("true",),
            "model.moe.load_count": ("first_choice", "model.moe.load_loss=0"),
            "model.moe.load_scope": ("micro_batch", "model.moe.load_loss=0"),
            "model.moe.importance_loss": ("0.1",),
            "model.moe.smooth_load_loss": ("0.1",),
        },
    ),
    **table(
        "refused",
        "rows",
        {
            "run.device": ("cuda",),
            "recommender.bottom": ("[9]",),
            "recommender.cross_layers": ("2",),
            "recommender.cross_rank": ("2",),
            "recommender.cross": ("stacked",),
            "recommender.attention": ("[9]",),
            "recommender.interest": ("9",),
            "recommender.auxiliary": ("[9]",),
            "recommender.auxiliary_weight": ("2",),
            "recommender.micro": ("[4,2]",),
            "recommender.orders": ("3",),
            "recommender.co_action": ("['a * b']",),
            "recommender.experts": ("2",),
            "recommender.expert": ("[9]",),
            "recommender.task_weights": ("[2.0]",),
            "rows.columns": ("['a']",),
            "rows.missing_label": ("mask",),
            "rows.validation_fraction": ("0.3", "rows.day=day", "train.steps=pass"),
            "rows.max_bad_rows": ("5",),
            "rows.delimiter": (";", "rows.files=rows.parquet"),
            "rows.decimal": (",", "rows.files=rows.parquet"),
            "embedding.pooling": ("mean", sparse('{columns="user",num_rows=9,pooling="sum"}')),
            "embedding.momentum": ("0.5",),
            "embedding.betas": ("[0.5,0.5]",),
            "embedding.eps": ("0.5", "embedding.optimizer=sgd"),
            "embedding.l1": ("0.5",),
            "embedding.l2": ("0.5",),
            "embedding.beta": ("0.5",),
            "embedding.policy": ("lru",),
            "embedding.warmup_steps": ("9",),
            "embedding.refresh_steps": ("9",),
            "embedding.step_rows": ("9",),
            "embedding.rank_bytes": ("100",),
            "checkpoint.full_every": ("2", "checkpoint.every_steps=end"),
            "log.tables_every": ("5",),
            **{
                f"embedding.dynamic.{key}": (value, sparse(HASHED))
                for key, value in {
                    "min_count": "3",
                    "max_candidates": "9",
                    "probability": "0.5",
                    "evict_steps": "9",
                    "max_age": "9",
                    "keep_rows": "9",
                }.items()
            },
            "embedding.dynamic.admission": ("count",),
            "embedding.dynamic.eviction": ("age",),
        },
    ),
    **table(
        "warned",
        "gpt",
        {
            "comm.timeout_s": ("5",),
            "train.bucket_bytes": ("4096",),
            "checkpoint.writers": ("first",),
            "parallel.shard": ("optimizer",),
        },
    ),
    **table(
        "warned",
        "rows",
        {"embedding.sharding": ("row",), "embedding.exchange": ("bf16",), "embedding.transfer": ("rows",)},
    ),
    **in_list(
        "warned",
        "rows",
        {"embedding.placement.sharding": (placement('{tables="user",sharding="row"}'), "embedding.packing=true")},
    ),
    # Time and memory: the results are the same.
    **table(
        "resource",
        "rows",
        {
            "rows.threads": ("1",),
            "rows.cache_bytes": ("0",),
            "embedding.memory_bytes": ("15000", sparse(HASHED)),
        },
    ),
    **table("resource", "images", {"images.threads": ("1",)}),
    **table("resource", "gpt", {"optimizer.name": ("adamw",)}),  # the one choice
    **table("trained", "gpt", {"train.max_skipped_steps": ("1", "optimizer.lr=1e30")}),
    **table("trained", "rows", {"rows.bad_row": ("skip", "rows.files=bad.tsv")}),
    **table("refused", "rows", {"rows.header": ("false", "rows.files=rows.parquet", "rows.columns=['a']")}),
    # Keys of lists: the list with the key, the list without it, what goes with both.
    **in_list(
        "trained",
        "gpt",
        {
            "data.mixture.path": (f"data.mixture=[{A}]", f"data.mixture=[{B}]", *PARTS),
            "data.mixture.weight": (f"data.mixture=[{A[:-1]},weight=9.0}},{B}]", f"data.mixture=[{A},{B}]", *PARTS),
            "data.phase.from": (
                f"data.phase=[{{from=0.5,mixture=[{A}]}}]",
                f"data.phase=[{{from=0.25,mixture=[{A}]}}]",
            ),
            "data.phase.mixture.path": (
                f"data.phase=[{{from=0.25,mixture=[{A}]}}]",
                f"data.phase=[{{from=0.25,mixture=[{B}]}}]",
            ),
            "data.phase.mixture.weight": (
                f"data.phase=[{{from=0.25,mixture=[{A[:-1]},weight=9.0}},{B}]}}]",
                f"data.phase=[{{from=0.25,mixture=[{A},{B}]}}]",
            ),
            "precision.override.layers": (
                other_recipe('layers="*.up"', 'recipe="bf16"'),
                other_recipe('layers="*.down"', 'recipe="bf16"'),
                *QUANTIZED,
            ),
            "precision.override.tensors": (
                other_recipe('layers="*"', 'recipe="bf16"', 'tensors="weight"'),
                other_recipe('layers="*.up"', 'recipe="bf16"'),
                *QUANTIZED,
            ),
            "precision.override.recipe": (
                other_recipe('layers="*"', 'recipe="mxfp4"'),
                other_recipe('layers="*.up"', 'recipe="bf16"'),
                *QUANTIZED,
            ),
        },
    ),
    **in_list(
        "refused",
        "gpt",
        {
            "precision.recipes.high_precision_ends": (
                'precision.recipes=[{name="mine",high_precision_ends=1}]',
                'precision.recipes=[{name="mine"}]',
                other_recipe('layers="*.up"', 'recipe="mine"'),
            ),
            "precision.recipes.name": ('precision.recipes=[{name="fp32"}]', 'precision.recipes=[{name="mine"}]'),
            **{
                f"precision.recipes.{operand}.{key}": (
                    recipe(operand, f'format="none",{key}={value}'),
                    recipe(operand, 'format="none"'),
                    *OWN,
                )
                for operand in ("weight", "activation", "gradient")
                for key, value in {
                    "blocks": '"tensor"',
                    "scale_mode": '"floor"',
                    "history": "4",
                    "rounding": '"stochastic"',
                    "hadamard": "true",
                }.items()
            },
        },
    ),
    **in_list(
        "trained",
        "gpt",
        {
            f"precision.recipes.{operand}.format": (
                recipe(operand, 'format="e2m1"'),
                'precision.recipes=[{name="mine"}]',
                *OWN,
            )
            for operand in ("weight", "activation", "gradient")
        },
    ),
    **in_list(
        "resource",
        "gpt",
        {
            "precision.recipes.help": (
                'precision.recipes=[{name="mine",help="why"}]',
                'precision.recipes=[{name="mine"}]',
                *OWN,
            )
        },
    ),
    **in_list(
        "trained",
        "rows",
        {
            "rows.dense.columns": (dense('{columns="age"}'), dense('{columns="price"}')),
            "rows.dense.missing": (dense('{columns="price",missing="mean"}'), dense('{columns="price"}')),
            "rows.dense.transform": (dense('{columns="price",transform="log1p"}'), dense('{columns="price"}')),
            "rows.sparse.name": (
                sparse('{columns="user",num_rows=9,name="who"}'),
                sparse('{columns="user",num_rows=9}'),
            ),
            "rows.sparse.columns": (sparse('{columns="item",num_rows=9}'), sparse('{columns="user",num_rows=9}')),
            "rows.sparse.ids": (
                sparse('{columns="slot",num_rows=7,ids="integer"}'),
                sparse('{columns="slot",num_rows=7}'),
            ),
            "rows.sparse.num_rows": (sparse('{columns="user",num_rows=9}'), sparse('{columns="user",num_rows=8}')),
            "rows.sparse.max_rows": (sparse(HASHED), sparse('{columns="user",max_rows=30}')),
            "rows.sparse.separator": (
                sparse('{columns="seen",num_rows=9,separator="|"}'),
                sparse('{columns="seen",num_rows=9}'),
            ),
            "rows.sparse.weights": (
                sparse('{columns="seen",num_rows=9,separator="|",weights="shares"}'),
                sparse('{columns="seen",num_rows=9,separator="|"}'),
            ),
            "rows.sparse.max_length": (
                sparse('{columns="seen",num_rows=9,separator="|",max_length=1}'),
                sparse('{columns="seen",num_rows=9,separator="|"}'),
            ),
            "rows.sparse.sequence": (
                sparse(USER, ITEM, SEEN),
                sparse(USER, ITEM, SEEN.replace("sequence=true,", "")),
                "recommender.model=din",
            ),
            "rows.sparse.table": (sparse(USER, ITEM, SEEN), sparse(USER, ITEM, SEEN.replace(',table="item"', ""))),
            "rows.sparse.missing": (
                sparse('{columns="seen",num_rows=9,missing="value"}'),
                sparse('{columns="seen",num_rows=9}'),
            ),
            "rows.sparse.dim": (
                sparse('{columns="user",num_rows=9,dim=3}', ITEM),
                sparse('{columns="user",num_rows=9}', ITEM),
            ),
            "rows.sparse.pooling": (
                sparse('{columns="seen",num_rows=9,separator="|",pooling="mean"}'),
                sparse('{columns="seen",num_rows=9,separator="|"}'),
            ),
            "embedding.override.optimizer": (
                override('{tables="user",optimizer="sgd"}'),
                override('{tables="user",lr=0.02}'),
            ),
            "embedding.override.lr": (
                override('{tables="user",lr=0.5}'),
                override('{tables="user",optimizer="rowwise_adagrad"}'),
            ),
            "embedding.override.weight_decay": (
                override('{tables="user",weight_decay=1.0}'),
                override('{tables="user",lr=0.02}'),
            ),
            "embedding.override.l1": (
                override('{tables="user",optimizer="ftrl",l1=0.01}'),
                override('{tables="user",optimizer="ftrl"}'),
            ),
            "embedding.override.l2": (
                override('{tables="user",optimizer="ftrl",l2=0.5}'),
                override('{tables="user",optimizer="ftrl"}'),
            ),
            "embedding.override.beta": (
                override('{tables="user",optimizer="ftrl",beta=0.1}'),
                override('{tables="user",optimizer="ftrl"}'),
            ),
            "embedding.override.initial_range": (
                override('{tables="user",initial_range=0.5}'),
                override('{tables="user",lr=0.02}'),
            ),
        },
    ),
    **in_list(
        "refused",
        "rows",
        {
            "rows.sparse.max_bytes": (
                sparse('{columns="user",num_rows=9,max_bytes="1MiB"}'),
                sparse('{columns="user",num_rows=9}'),
            ),
            "rows.sparse.keep": (
                sparse('{columns="user",num_rows=9,keep="first"}'),
                sparse('{columns="user",num_rows=9}'),
            ),
            "embedding.override.momentum": (
                override('{tables="user",lr=0.5,momentum=0.5}'),
                override('{tables="user",lr=0.5}'),
            ),
            "embedding.override.betas": (
                override('{tables="user",lr=0.5,betas=[0.5,0.5]}'),
                override('{tables="user",lr=0.5}'),
            ),
            "embedding.override.eps": (
                override('{tables="user",lr=0.5,optimizer="sgd",eps=0.5}'),
                override('{tables="user",lr=0.5,optimizer="sgd"}'),
            ),
            "embedding.placement.tables": (
                placement('{tables="user",sharding="row"}', '{tables="*",sharding="table"}'),
                placement('{tables="*",sharding="table"}'),
            ),
            "embedding.override.tables": (
                override('{tables="user",lr=0.5}', '{tables="*",lr=0.1}'),
                override('{tables="*",lr=0.1}'),
            ),
        },
    ),
}


# Situations beside the one of the table, each with what the error says.
OTHERS = [
    ("gpt", ["model.moe.load_scope=micro_batch"], "model.moe.load_scope"),
    ("moe", ["model.moe.drop=probability", "model.moe.slot_order=token"], "slot_order"),
    (
        "gpt",
        ["data.tokenizer.kind=bpe", "data.tokenizer.path=x.json", "data.tokenizer.vocab_size=999"],
        "data.tokenizer.vocab_size",
    ),
    ("gpt", ["data.tokenizer.kind=sentencepiece", "data.tokenizer.split=llama3"], "data.tokenizer.split"),
    ("gpt", ["data.validation_fraction=0", "data.validation_split=document", "eval.every_steps=3"], "eval.every_steps"),
    ("gpt", ["schedule.decay=wsd", "schedule.decay_fraction=0", "schedule.min_lr_ratio=0.5"], "schedule.min_lr_ratio"),
    ("gpt", [other_recipe('layers="*"', 'recipe="bf16"')], "precision.override of *"),
    ("gpt", ["precision.recipe=mxfp8", other_recipe('layers="*"', 'recipe="mxfp8"')], "precision.override of *"),
    ("gpt", ["data.validation_fraction=0"], "data.validation_split"),
    ("rows", ["recommender.dim=5", sparse('{columns="user",num_rows=9,dim=3}')], "recommender.dim"),
    ("gpt", ["eval.max_rows=5"], "eval.max_rows"),
    ("gpt", ["vision.height=64"], "vision.height"),
    ("rows", ["images.crop=random"], "images.crop"),
    ("images", ["model.layers=3"], "model.layers"),
    ("images", ["precision.recipe=bf16"], "precision.recipe"),
    ("rows", ["precision.gemm=native"], "precision.gemm"),
    ("rows", [other_recipe('layers="*"', 'recipe="bf16"')], "precision.override"),
    ("rows", ['precision.recipes=[{name="mine"}]'], "precision.recipes"),
    ("images", ["images.validation_fraction=0", "eval.every_steps=2"], "eval.every_steps"),
    ("rows", ["model.preset=llama-1b"], "model.preset"),
    ("gpt", ["run.start_from=old"], "run.start_from"),
    ("rows", ["run.start_optimizer=new"], "run.start_optimizer"),
    ("images", ["run.cuda_graph=off"], "run.cuda_graph"),
    ("rows", ["run.attention=flash"], "run.attention"),
    ("rows", ["eval.max_tokens=5"], "eval.max_tokens"),
    ("rows", ["rows.validation_fraction=0", "eval.every_steps=2"], "eval.every_steps"),
    ("rows", ["eval.every_steps=0", "eval.max_rows=5"], "eval.max_rows"),
    ("rows", ["rows.day=day", "train.steps=pass", "log.trace_steps=[99999]"], "log.trace_steps"),
    (
        "rows",
        ["recommender.model=dien", SEQUENCES, "recommender.auxiliary_weight=0", "recommender.auxiliary=[9]"],
        "recommender.auxiliary",
    ),
    ("gpt", ["checkpoint.every_steps=0", "checkpoint.keep=2"], "checkpoint.keep"),
    ("rows", ["checkpoint.every_steps=0", "checkpoint.full_every=2"], "checkpoint.full_every"),
    ("gpt", ["checkpoint.every_steps=0", "checkpoint.writers=first"], "checkpoint.writers"),
    ("rows", ["embedding.lr=0.5", override('{tables="*",lr=0.1}')], "embedding.lr"),
    ("rows", ["embedding.optimizer=sgd", override('{tables="*",optimizer="adam"}')], "embedding.optimizer"),
    ("rows", ["embedding.weight_decay=1.0", override('{tables="*",weight_decay=0.5}')], "embedding.weight_decay"),
]


def known_keys():
    """Keys of the program's reference: "rows.sparse.columns"."""
    keys, section = [], ""
    for line in subprocess.check_output([BINARY, "config", "--reference"], text=True).splitlines():
        if line.startswith("## "):
            section = re.sub(r"[#\[\]` ]", "", line)
        elif line.startswith("| `"):
            keys.append(f"{section}.{line.split('`')[1]}")
    return keys


def write_inputs(folder: Path):
    make_workspace(folder)
    for base, text in BASES.items():
        (folder / f"{base}.toml").write_text(text)
    (folder / "twice").mkdir()
    text = (folder / "text/0.txt").read_text()
    for name, content in {"a": text, "b": text, "c": text[:2000]}.items():
        (folder / f"twice/{name}.txt").write_text(content)
    (folder / "files.txt").write_text("text\t1.txt\n")
    values = np.random.default_rng(1)
    for name in ("x", "other"):
        np.save(folder / f"{name}.npy", values.integers(0, 256, (40, 20, 24, 3), np.uint8))
    for name in ("y", "other_y"):
        np.save(folder / f"{name}.npy", values.integers(0, 3, 40))
    draw = random.Random(1)
    rows = [["user", "item", "slot", "seen", "shares", "price", "age", "day", "clicked"]]
    for i in range(400):
        seen = [f"i{draw.randrange(20)}" for _ in range(i % 4)]
        price = "" if i % 9 == 0 else f"{draw.gauss(20, 5):.3f}"
        shares = "|".join(f"{draw.random():.3f}" for _ in seen)
        row = [f"u{draw.randrange(40)}", f"i{draw.randrange(20)}", draw.randrange(7), "|".join(seen), shares, price]
        rows.append([*row, draw.randrange(90), f"2013010{1 + i // 100}", draw.randrange(2)])
    lines = ["\t".join(map(str, row)) for row in rows]
    (folder / "rows.tsv").write_text("\n".join(lines) + "\n")
    (folder / "other.tsv").write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    (folder / "rows.csv").write_text("\n".join([lines[0].replace("slot", "slot, x"), *lines[1:]]) + "\n")
    (folder / "bad.tsv").write_text("\n".join([*lines, "too\tfew"]) + "\n")
    pq = pytest.importorskip("pyarrow.parquet")
    csv = pytest.importorskip("pyarrow.csv")
    pq.write_table(
        csv.read_csv(folder / "rows.tsv", parse_options=csv.ParseOptions(delimiter="\t")), folder / "rows.parquet"
    )
    dovetail("train", "rows.toml", "--set", "run.folder=old", folder=folder)
    for name in ("a", "b"):
        words = [
            "--out",
            f"data/{name}",
            "--set",
            "data.validation_split=tail",
            "--set",
            "data.validation_fraction=0.1",
        ]
        dovetail("prepare", f"text/{ord(name) - ord('a')}.txt", *words, folder=folder)


class Runs:
    """Commands in copies of one workspace, each once."""

    def __init__(self, folder):
        self.folder, self.numbers = folder, iter(range(10**6))
        write_inputs(folder / "inputs")
        self.run = cache(self._run)

    def _run(self, base, settings, *words):
        folder = self.folder / str(next(self.numbers))
        shutil.copytree(self.folder / "inputs", folder)
        sets = [word for setting in settings for word in ("--set", setting)]
        done = subprocess.run(
            [BINARY, "train", f"{base}.toml", *sets, *words], cwd=folder, capture_output=True, text=True, timeout=600
        )
        seen = files_of(folder)
        shutil.rmtree(folder)
        return done.returncode, done.stderr, seen


def files_of(folder):
    """Results of a run: names of all files, contents without times, paths and the config."""
    seen = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        seen.append(re.sub(r"\d{6,}.*", "", str(path.relative_to(folder))))
        if path.name in ("metrics.jsonl", "samples.json", "experts.jsonl", "quantization.jsonl", "embedding_plan.json"):
            seen.append(path.read_text())
        if path.name == "machine.json":
            machine = json.loads(path.read_text())
            seen.append(json.dumps([machine["threads"], machine["device"], machine["precision"]["compute"]]))
    return tuple(seen)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("keys"))


def settings_of(entry):
    """Settings with the key, and without it."""
    if len(entry) == 3:
        return entry[2], entry[2][1:]
    _, _, given, (without, *others) = entry
    return [given, *others], [without, *others]


def wrong_with(runs, key, entry):
    """Why the program does not do with the key what the table says; None: it does."""
    how, base, *_ = entry
    given, without = map(tuple, settings_of(entry))
    if how == "shown":
        shown, usual = (runs.run(base, settings, "--dry-run") for settings in (given, without))
        return None if shown[0] == usual[0] == 0 and shown[1] != usual[1] else (shown[:2], usual[:2])
    if how == "refused":
        code, text, _ = runs.run(base, given)
        section, name = key.rsplit(".", 1)
        named = (
            name in text or f"[{section}]" in text or f"{section.split('.')[-1]} has options of quantization" in text
        )
        usual = (0,) if key == "rows.header" else runs.run(base, without, "--dry-run")
        return None if code == 2 and named and usual[0] == 0 else (code, text, usual[:2])
    code, text, seen = runs.run(base, given)
    usual = runs.run(base, without)
    if how == "warned":
        return None if code == 0 and f"{key}: about what ranks exchange" in text else (code, text)
    if how == "resource":
        return None if code == usual[0] == 0 and seen == usual[2] else (code, text)
    differ = (code, seen) != (usual[0], usual[2])
    return None if differ and code != 2 else (code, text, usual[:2])


def test_the_table_has_each_key():
    assert sorted(ENTRIES) == sorted(known_keys())


def test_each_key_is_honoured_or_refused(runs):
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda item: wrong_with(runs, *item), ENTRIES.items())
    wrong = {key: why for key, why in zip(ENTRIES, found, strict=True) if why is not None}
    assert not wrong, "\n".join(f"{key}: {why}" for key, why in wrong.items())


@pytest.mark.parametrize(("base", "settings", "key"), OTHERS)
def test_other_situations_in_which_a_key_does_nothing(runs, base, settings, key):
    code, text, _ = runs.run(base, tuple(settings))
    assert code == 2 and key in text, text
    assert "nothing" in text or "ends at" in text, text
