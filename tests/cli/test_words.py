"""tools/check_words.py in small repositories: riddles in new lines fail, older lines are left alone."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools/check_words.py"
LONG = "Each " + "very " * 30 + "long sentence hides its one fact."
IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")


class Repository:
    """A repository whose first commit, on main, holds an old riddle."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.git("init", "-q", "-b", "main")
        self.commit("old.h", "// What an old comment says.\nint old;\n")

    def git(self, *words: str) -> str:
        command = ["git", *IDENTITY, *words]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True).stdout.strip()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def commit(self, name: str, text: str) -> None:
        self.write(name, text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", name)

    def check(self, *options: str) -> subprocess.CompletedProcess:
        command = [sys.executable, str(TOOL), *options]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)


@pytest.fixture
def repository(tmp_path):
    made = Repository(tmp_path)
    made.git("switch", "-q", "-c", "branch")
    return made


RIDDLES = [
    ("a.h", "int a;  // of the last cache\n", 1, "start"),
    ("a.h", "/// Whether it fits.\nbool fits();\n", 1, "start"),
    ("a.h", "/** Those that are\n * left. */\n", 1, "start"),
    ("a.h", "/// Sends rows. That is a copy.\nvoid send();\n", 1, "start"),
    ("a.cpp", 'header("of which computing (ms)");\n', 1, "phrase"),
    ("a.cpp", 'option("--seed", "Of the initial centres and of the sample");\n', 1, "start"),
    ("a.cpp", 'throw UserError("two ranks hold rows, "\n                "of which one is dead");\n', 2, "phrase"),
    ("a.cpp", "int rows = 1'000;  // of the rank's table\n", 1, "start"),
    ("a.cpp", 'throw UserError("two ranks hold rows of "\n                "which one is dead");\n', 1, "phrase"),
    ("a.cu", "// Rows of up lie in\n// those\n// of gate.\n", 2, "phrase"),
    ("a.py", 'def f():\n    """That which is kept."""\n', 2, "start"),
    ("a.py", "x = 1  # made again each step\n", 1, "word"),
    ("a.toml", "# The loads of late.\nx = 1\n", 1, "word"),
    ("run", "#!/bin/sh\nset -e # What fails\n", 2, "start"),
    ("CMakeLists.txt", "# The library that it is of.\n", 1, "phrase"),
    ("docs/a.md", f"# Title\n\n- Short.\n- {LONG}\n", 4, "length"),
    ("docs/a.md", "| key | a size, that of the batch |\n", 1, "phrase"),
]


@pytest.mark.parametrize(("name", "text", "line", "rule"), RIDDLES)
def test_a_riddle_in_a_new_line_fails(repository, name, text, line, rule):
    repository.commit(name, text)
    result = repository.check()
    assert result.returncode == 1
    assert result.stdout.startswith(f"{name}:{line}: {rule}: ")
    assert result.stdout.count("\n") == 1
    assert " -> " in result.stdout
    assert "the merge base with main" in result.stderr


PLAIN = [
    ("a.h", "/// L3 size to assume when sysconf\n/// of this system reports 0,\n/// that is, nothing.\nint size();\n"),
    ("a.h", "int a;  // sum over the ranks\n        // of this node\n"),
    ("a.h", "#include <a>\nconstexpr char kUrl[] = \"//What\"; // 1'000'000\nint b = 1'000'000;\n"),
    ("a.cpp", 'print("of the row that was there");\nprint("Of {}");\n'),
    ("a.py", 'def f(x):\n    """Returns x."""\n    return "What is not documentation, and of which nobody reads"\n'),
    ("docs/a.md", "What to expect:\n\n```\n# Of code, of which nothing is read\n```\n\nA key `those of`.\n"),
    ("docs/a.md", "Split. " + "auto: the fastest of all the splits that were measured. " * 4 + "\n"),
    ("docs/a.md", "- one item without a full stop\n" * 20),
    ("a.h", "/// Fields:\n" + "/// - one item without a full stop\n" * 20 + "int a;\n"),
    ("docs/config.md", "| key | parts, of which one |\n"),
    ("data.txt", "Of which, of late.\n"),
]


@pytest.mark.parametrize(("name", "text"), PLAIN)
def test_plain_words_pass(repository, name, text):
    repository.commit(name, text)
    result = repository.check()
    assert (result.returncode, result.stdout) == (0, "")


def test_only_new_lines_count_committed_or_not(repository):
    repository.commit("old.h", "// What an old comment says.\nint old;\nint other;\n")
    assert repository.check().returncode == 0
    repository.write("old.h", "// What an old comment says.\nint old;\nint other;  // of a draft\n")
    repository.write("untracked.h", "// Of nothing.\n")
    result = repository.check()
    assert result.returncode == 1
    assert [row.split(": ")[0] for row in result.stdout.splitlines()] == ["old.h:3", "untracked.h:1"]


def test_a_moved_file_is_not_new(repository):
    repository.git("config", "diff.renames", "false")
    repository.git("mv", "old.h", "moved.h")
    repository.git("commit", "-q", "-m", "move")
    assert repository.check().returncode == 0


def test_markers_protect_quoted_examples(repository):
    repository.commit("a.md", "<!-- words: off -->\nparts, of which one\n<!-- words: on -->\nPlain.\n")
    assert repository.check().returncode == 0
    repository.commit("a.md", "<!-- words: off -->\n<!-- words: on -->\nparts, of which one\n")
    assert repository.check().returncode == 1


def test_on_main_the_last_commit_counts(repository):
    repository.git("switch", "-q", "main")
    repository.commit("riddle.h", "// Of nothing.\n")
    result = repository.check()
    assert result.returncode == 1
    assert "riddle.h:1" in result.stdout
    assert "old.h" not in result.stdout
    assert "the previous commit" in result.stderr
    repository.commit("plain.h", "// Rows of one table.\n")
    assert repository.check().returncode == 0


def test_without_main_the_last_commit_counts(repository):
    repository.commit("riddle.h", "// Of nothing.\n")
    repository.git("switch", "-q", "--detach")
    repository.git("branch", "-q", "-D", "main", "branch")
    result = repository.check()
    assert result.returncode == 1
    assert "riddle.h:1" in result.stdout
    assert "the previous commit" in result.stderr


def test_a_clone_compares_with_the_remote_main(repository, tmp_path_factory):
    repository.commit("riddle.h", "// Of nothing.\n")
    repository.commit("plain.h", "// Rows of one table.\n")
    clone = tmp_path_factory.mktemp("clone") / "full"
    repository.git("clone", "-q", str(repository.folder), str(clone))
    repository.folder = clone
    result = repository.check()
    assert result.returncode == 1
    assert "riddle.h:1" in result.stdout
    assert "the merge base with origin/main" in result.stderr


def test_a_shallow_clone_says_that_it_cannot_see_the_last_commit(repository, tmp_path_factory):
    clone = tmp_path_factory.mktemp("clone") / "shallow"
    repository.git("clone", "-q", "--depth", "1", f"file://{repository.folder}", str(clone))
    repository.folder = clone
    result = repository.check()
    assert result.returncode == 0
    assert "the clone is shallow" in result.stderr


def test_all_counts_by_folder(repository):
    repository.commit("src/part/a.h", "// Of nothing.\n")
    result = repository.check("--all")
    assert result.returncode == 1
    assert "old.h:1: start" in result.stdout
    counts = {row.split()[0]: row.split()[1:] for row in result.stdout.partition("\n\n")[2].splitlines()[1:]}
    assert counts == {"old.h": ["1", "0", "0", "0"], "src/part": ["1", "0", "0", "0"], "total": ["2", "0", "0", "0"]}
    repository.git("rm", "-q", "src/part/a.h", "old.h")
    assert repository.check("--all").returncode == 0
