"""Advice leads somewhere: each command, option and config key that a message of the sources names exists."""

import re
from functools import cache
from pathlib import Path

from cli import dovetail

ROOT = Path(__file__).resolve().parents[2]
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
# Options of other programs that messages name: ./dev, docker, dovetail without a command.
FOREIGN_OPTIONS = {"--preset", "--gpus", "--version"}


def messages():
    """(file, text) of each string literal; neighbouring literals are one text."""
    for path in sorted((ROOT / "dovetail").rglob("*.cpp")):
        code = re.sub(r"^\s*(#include|//).*$", "", path.read_text(), flags=re.MULTILINE)
        code = re.sub(r'R"(\w*)\(.*?\)\1"', '""', code, flags=re.DOTALL)
        end, text = None, ""
        for match in LITERAL.finditer(code):
            if end is not None and code[end : match.start()].strip():
                yield path.relative_to(ROOT), text
                text = ""
            text += match.group(1).replace('\\"', '"')
            end = match.end()
        yield path.relative_to(ROOT), text


@cache
def keys():
    """Dotted keys of the reference of configs, lists without their brackets."""
    found, section = set(), ""
    for line in dovetail("config", "--reference", folder=ROOT).stdout.splitlines():
        if heading := re.match(r"## `\[+([\w.]+)\]+`", line):
            section = heading.group(1)
            found.add(section)
        elif row := re.match(r"\| `(\w+)` \|", line):
            found.add(f"{section}.{row.group(1)}")
    return found


@cache
def commands():
    text = dovetail("--help", folder=ROOT).stdout
    return set(re.findall(r"^  ([a-z]+) {2,}", text, re.MULTILINE))


@cache
def options(command):
    return set(re.findall(r"--[a-z][\w-]*", dovetail(command, "--help", folder=ROOT).stdout))


def test_keys_in_messages_exist():
    sections = {key.split(".")[0] for key in keys()}
    named = re.compile(rf"(?<![\w./\[])((?:{'|'.join(sections)})(?:\.[a-z_0-9]+)+)(?![\w(/*])")
    # Fields of tokenizer.json are named as keys of [model] are.
    fields = {"model.vocab", "model.merges"}
    files = re.compile(r"\.(toml|json|jsonl|html|txt|cpp|h|py|so|bin|pt|dat|safetensors|model|parquet)$|\.weight$")
    wrong, checked = [], 0
    for path, text in messages():
        for key in named.findall(text):
            if " " not in text or key in fields or files.search(key):
                continue
            checked += 1
            if key not in keys():
                wrong.append(f"{path}: {key} in {text!r}")
    assert not wrong, "\n".join(wrong)
    assert checked > 100


def test_commands_and_options_in_messages_exist():
    wrong, checked = [], 0
    for path, text in messages():
        for quoted in re.findall(r"`dovetail ([^`]+)`", text) + re.findall(r"(?:: |^)dovetail ([a-z]+[^;,.)]*)", text):
            words = quoted.split()
            if not re.fullmatch("[a-z]+", words[0]):
                continue
            checked += 1
            if words[0] not in commands():
                wrong.append(f"{path}: dovetail {words[0]} in {text!r}")
                continue
            known = options(words[0]) if words[0] != "launch" else set().union(*map(options, commands()))
            for option in set(re.findall(r"--[a-z][\w-]*", quoted)) - FOREIGN_OPTIONS:
                if option not in known:
                    wrong.append(f"{path}: dovetail {words[0]} {option} in {text!r}")
    assert not wrong, "\n".join(wrong)
    assert checked > 20


def test_options_of_the_commands_messages_exist():
    """A message of dovetail/cli names options of some command."""
    every = set().union(*map(options, commands())) | FOREIGN_OPTIONS
    wrong = []
    for path, text in messages():
        drawing_or_script = "var(--" in text or "#compdef" in text
        if path.parts[1] == "cli" and " " in text and not drawing_or_script:
            wrong += [
                f"{path}: {o} in {text!r}" for o in re.findall(r"(?<![\w-])--[a-z][\w-]+", text) if o not in every
            ]
    assert not wrong, "\n".join(wrong)
