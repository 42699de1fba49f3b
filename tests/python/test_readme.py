"""The commands and Python of README.md and of pages in docs, run in the order shown."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = "\n".join(
    page.read_text()
    for page in [ROOT / "README.md", *(ROOT / "docs" / name for name in ("commands.md", "mx.md", "plan.md"))]
)
ENVIRONMENT = dict(os.environ, PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")

SHORT = "train.steps=4 schedule.warmup_steps=2 eval.every_steps=2 checkpoint.every_steps=2"
SHORT_GPT = f"{SHORT} model.layers=1 model.width=32 model.heads=2 eval.max_tokens=512 log.sample_tokens=4"
# Settings that make a command of `./dev run` short, by the command's first words.
SETTINGS = {
    "train configs/tinyshakespeare.toml": SHORT_GPT,
    "launch -n 2 train configs/tinyshakespeare.toml": f"run.name=ranks {SHORT_GPT}",
    "train configs/flights.toml": f"{SHORT} train.batch=64 rows.shuffle_window=1024",
    "eval runs/flights": "",
    "export runs/flights": "",
}


def fences(text, *languages):
    """Returns the bodies of the fenced blocks in one of the languages."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [body for language, body in blocks if language in languages]


def shell_commands(text):
    """Returns the words after `./dev` of each such command in a shell fence."""
    lines = "".join(fences(text, "", "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("./dev ")]


def entry(words):
    """Returns the key of SETTINGS for the words after `./dev run`."""
    command = shlex.join(words)
    for start in SETTINGS:
        if f"{command} ".startswith(f"{start} "):
            return start
    pytest.fail(f"`./dev run {command}` is shown, but SETTINGS of tests/python/test_readme.py does not name it")


def listed():
    """Returns the commands that `./dev --help` lists."""
    text = subprocess.run([ROOT / "dev", "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^  ([a-z]+) ", text, re.MULTILINE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder like a checkout, with the text and sources that a reader brings, for what the commands write."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("bench", "configs", "docs", "examples", "tools"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "input.txt").write_text("".join(f"{n} gears mesh and neither waits for the other\n" for n in range(2000)))
    (folder / "src").mkdir()
    (folder / "src/gears.py").write_text("".join(f"def gear_{n}():\n    return {n}\n\n\n" for n in range(500)))
    return folder


def run(words, folder):
    done = subprocess.run(words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("words", [pytest.param(words, id=shlex.join(words)) for words in shell_commands(PAGES)])
def test_command(words, folder):
    match words:
        case ["run", *rest]:
            settings = [word for value in SETTINGS[entry(rest)].split() for word in ("--set", value)]
            run([os.environ["DOVETAIL_BINARY"], *rest, *settings], folder)
        case ["python", *rest]:
            run([sys.executable, *rest], folder)
        case [name, *_]:  # continuous integration and tests/bare.sh run it
            assert name in listed()


@pytest.mark.parametrize("source", fences(PAGES, "python"))
def test_python(source, folder):
    run([sys.executable, "-c", source], folder)


def test_dev_lists_every_command_that_the_pages_mention():
    assert {"quickstart", "test", "build", "run", "python", "bench", "wheel", "docs"} <= listed()
    assert set(re.findall(r"\./dev (\w+)", PAGES)) <= listed()


def test_commands_are_found_in_shell_fences():
    first = "```sh\n./dev run a --set b='c d' \\\n  e  # why\nls\n```\n"
    text = f"{first}`./dev no`\n```python\n./dev no\n```\n```\n./dev x\n```\n"
    assert shell_commands(text) == [["run", "a", "--set", "b=c d", "e"], ["x"]]


def test_a_command_without_settings_fails_by_name():
    with pytest.raises(pytest.fail.Exception, match=r"`./dev run train configs/other\.toml`"):
        entry(["train", "configs/other.toml"])


def test_every_setting_belongs_to_a_command_that_is_shown():
    assert set(SETTINGS) == {entry(words[1:]) for words in shell_commands(PAGES) if words[0] == "run"}
