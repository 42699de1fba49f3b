"""Commands that need no run: help, version, config, completions, prepare, doctor."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from cli import dovetail, dovetail_json

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    "train", "eval", "generate", "prepare", "inspect", "report", "config", "doctor", "launch", "bench", "simulate",
    "plan", "kmeans", "fit", "export", "import", "completions",
]  # fmt: skip


def test_help_lists_every_command_and_each_has_an_example(tmp_path):
    text = dovetail("--help", folder=tmp_path).stdout
    for command in COMMANDS:
        assert f"\n  {command} " in text, command
    text = dovetail("eval", "--help", folder=tmp_path).stdout
    assert "Example:\n  dovetail eval " in text
    assert "--shots" in text


def test_version(tmp_path):
    words = dovetail("--version", folder=tmp_path).stdout.split()
    assert words[0] == "dovetail"
    assert words[2].startswith("(torch")


def test_config_prints_toml_that_reads_back(tmp_path):
    (tmp_path / "run.toml").write_text('[model]\npreset = "gpt2-124m"\nlayers = 3\n[train]\nbatch = 4\n')
    text = dovetail("config", "run.toml", "--set", "train.batch=6", folder=tmp_path).stdout
    config = tomllib.loads(text)
    assert config["model"]["layers"] == 3
    assert config["model"]["width"] == 768
    assert config["train"]["batch"] == 6
    (tmp_path / "again.toml").write_text(text)
    assert dovetail_json("config", "again.toml", folder=tmp_path) == config


def test_config_explains_a_key_and_prints_the_reference(tmp_path):
    assert "warm-up" in dovetail("config", "--explain", "schedule.warmup_steps", folder=tmp_path).stdout
    reference = dovetail("config", "--reference", folder=tmp_path).stdout
    assert reference == (ROOT / "docs/config.md").read_text(), "docs/config.md is of another program: ./dev docs"


def test_prepare_is_the_same_twice_and_says_what_it_made(tmp_path):
    (tmp_path / "a.txt").write_text("some text for the shards\n" * 50)
    (tmp_path / "b.md").write_text("# more\n" * 50)
    command = ["prepare", "a.txt", "b.md", "--out", "made", "--set", "data.validation_split=tail"]
    first = dovetail_json(*command, folder=tmp_path)
    assert (first["documents"], first["reused"]) == (2, False)
    assert first["train_bytes"] + first["validation_bytes"] == 50 * 25 + 50 * 7
    second = dovetail_json(*command, folder=tmp_path)
    assert second["reused"]
    assert second["sha256"] == first["sha256"]
    seen = dovetail_json("inspect", "made", folder=tmp_path)
    assert (seen["kind"], seen["tokenizer"]) == ("prepared data", "bytes")
    assert seen["train_tokens"] == first["train_tokens"]


def test_doctor_measures_and_lists_problems(tmp_path):
    report = dovetail_json("doctor", folder=tmp_path)
    assert report["cores"] >= 1
    for rate in ["copy_bytes_per_s", "gemm_fp32_flops", "gemm_bf16_flops"]:
        assert report[rate] > 0
    assert all(problem["help"] for problem in report["problems"])
    assert set(report["gpu"]) == {"devices", "driver", "usable", "kernels", "nccl"}


@pytest.mark.parametrize(("shell", "check"), [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")])
def test_completions_parse_and_offer_what_exists(shell, check, tmp_path):
    script = dovetail("completions", shell, folder=tmp_path).stdout
    for word in [*COMMANDS, "set", "max-restarts", "top-k"]:
        assert word in script, word
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, check, "script"], cwd=tmp_path, check=True)


def test_bash_completes_commands_options_and_values(tmp_path):
    (tmp_path / "script").write_text(dovetail("completions", "bash", folder=tmp_path).stdout)

    def complete(*words):
        typed = " ".join(f"'{word}'" for word in words)
        program = f"""
            source ./script; compopt() {{ :; }}
            COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _dovetail; printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        return subprocess.run(
            ["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.split()

    assert complete("dovetail", "ge") == ["generate"]
    assert complete("dovetail", "generate", "run", "--top") == ["--top-k", "--top-p"]
    assert complete("dovetail", "completions", "z") == ["zsh"]
    (tmp_path / "some.toml").write_text("")
    assert complete("dovetail", "train", "so") == ["some.toml"]
    assert complete("dovetail", "generate", "run", "--tokens", "") == []
