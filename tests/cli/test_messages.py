"""Exact texts that a user reads after a mistake, and the exit codes."""

import json
import subprocess

import pytest
from cli import dovetail, dovetail_json
from tiny_run import BINARY


def stderr_of(*words, folder, code=2):
    result = dovetail(*words, folder=folder, code=code)
    assert result.stdout == ""
    return result.stderr


def test_unknown_key_shows_the_line_and_the_nearest_key(tmp_path):
    (tmp_path / "run.toml").write_text('[run]\nname = "x"\n\n[precison]\nrecipe = "fp32"\n')
    text = stderr_of("config", "run.toml", folder=tmp_path)
    assert "unknown key `precison`" in text
    assert "--> run.toml:4:2" in text
    assert "4 | [precison]" in text
    assert "did you mean `precision`?" in text


def test_out_of_range_names_place_and_range(tmp_path):
    (tmp_path / "run.toml").write_text("[train]\nbatch = 0\n")
    text = stderr_of("train", "run.toml", folder=tmp_path)
    assert text.startswith("error: ")
    assert "train.batch" in text
    assert "run.toml:2:9" in text


def test_a_wrong_override_names_itself(tmp_path):
    text = stderr_of("config", "--set", "train.stepz=5", folder=tmp_path)
    assert "--set train.stepz=5" in text
    assert "train.steps" in text or "`steps`" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "error: unknown command `trian`\nhelp: did you mean `train`?\n"),
        (["train", "x.toml", "--quite"],
         "error: unknown option `--quite` of `dovetail train`\nhelp: did you mean `--quiet`?\n"),
        (["generate", "run", "--tokens", "many"], 'error: --tokens: "many" is not a number\n'),
        (["generate", "run", "--tokens", "1.5"], "error: --tokens: 1.5 is not a whole number\n"),
        (["generate", "run", "--top-p", "2"], "error: --top-p: 2 is outside 1e-06 to 1\n"),
        (["completions", "bsh"],
         'error: shell: "bsh" is not one of bash, zsh, fish\nhelp: did you mean `bash`?\n'),
        (["generate", "absent"],
         "error: absent does not exist\nhelp: give a run's folder (runs/<name>) or one of its checkpoints\n"),
        (["prepare"], None),
        (["launch", "-n", "2"], None),
        ([], "error: no command was given\nhelp: see `dovetail --help`\n"),
    ],
)  # fmt: skip
def test_mistakes_on_the_command_line(words, message, tmp_path):
    text = stderr_of(*words, folder=tmp_path)
    assert text.startswith("error: ")
    if message is not None:
        assert text == message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "run", "--tokens", "5", "--tokens", "6"], "dovetail generate: --tokens is given twice"),
        (["generate", "run", *(3 * ["--tokens", "5"])], "dovetail generate: --tokens is given 3 times"),
        (["generate", "run", "--tokens"], "dovetail generate: --tokens has no value; it needs N"),
        (["train", "--set"], "dovetail train: --set has no value; it needs KEY=VALUE"),
        (["launch", "-n"], "dovetail launch: --ranks has no value; it needs N"),
        (["train", "x.toml", "--quiet=maybe"], "dovetail train: --quiet is a flag and takes no value"),
        (["--version=x"], "dovetail: --version is a flag and takes no value"),
        (["import", "x"], "dovetail import: --out is required"),
    ],
)
def test_values_of_options(words, message, tmp_path):
    text = stderr_of(*words, folder=tmp_path)
    assert text.startswith(f"error: {message}\nhelp: ")


def test_inspect_shows_a_model_type_of_another_kind(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": 5}')
    assert dovetail_json("inspect", "model", folder=tmp_path)["model_type"] == 5


def test_a_missing_file_says_which(tmp_path):
    assert "absent.toml" in stderr_of("train", "absent.toml", folder=tmp_path)


def test_json_holds_the_error_too(tmp_path):
    (tmp_path / "run.toml").write_text("[modl]\nlayers = 2\n")
    error = dovetail_json("config", "run.toml", folder=tmp_path, code=2)["error"]
    assert error["kind"] == "input"
    assert error["exit_code"] == 2
    assert error["place"] == "run.toml:1:2"
    assert "modl" in error["message"]


def test_launch_reports_a_mistake_once_before_any_rank_starts(tmp_path):
    (tmp_path / "run.toml").write_text("[train]\nbatch = -1\n")
    text = stderr_of("launch", "-n", "2", "train", "run.toml", folder=tmp_path)
    assert text.count("train.batch") == 1
    text = stderr_of("launch", "-n", "2", "trian", "run.toml", folder=tmp_path)
    assert "did you mean `train`?" in text


def test_a_reader_that_goes_away_is_no_failure():
    with subprocess.Popen([BINARY, "config", "--reference"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=600) == 0


def test_errors_of_a_config_are_the_same_in_json_and_in_text(tmp_path):
    (tmp_path / "run.toml").write_text("[train]\nsteps = 10\n[schedule]\nwarmup_steps = 10\n")
    result = dovetail("config", "run.toml", "--json", folder=tmp_path, code=2)
    error = json.loads(result.stdout)["error"]
    assert error["message"] in result.stderr
    assert error["help"] in result.stderr


def test_native_products_are_refused_on_the_cpu_before_anything_is_prepared(tmp_path):
    (tmp_path / "text.txt").write_text("some text\n" * 100)
    (tmp_path / "run.toml").write_text(
        '[run]\ndevice = "cpu"\n[data]\ntext = "text.txt"\n[precision]\nrecipe = "mxfp8"\ngemm = "native"\n'
    )
    text = stderr_of("train", "run.toml", folder=tmp_path)
    assert text == (
        'error: precision.gemm = "native": native products need a GPU of compute capability 10.0 or later, '
        'but the device is the CPU\nhelp: use precision.gemm = "emulated"\n'
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.toml", "text.txt"]
