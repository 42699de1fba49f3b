"""Find sentences that a newcomer has to read twice, in comments, docstrings, docs and messages.

usage: check_words.py [--all]

Without arguments: lines changed since the merge base with main, on main itself since the previous commit.
Uncommitted work counts. With --all: every line of the tree, with counts by folder. Findings exit with 1.

docs/style.md explains the rules. Text between the comments `words: off` and `words: on` is left alone.
"""

import ast
import collections
import pathlib
import re
import sys
from typing import NamedTuple

import changes

MAX_WORDS = 20
MIN_STRING_WORDS = 5  # shorter string literals are names and formats
GENERATED = ("docs/config.md", "bench/results/")  # docs/config.md: its texts are checked in the C++ sources

START = re.compile(r"(Of|What|Whether|That|Those)\b")
# words: off
PATTERNS = [
    ("phrase", r"\bof (?:which|whom)\b", "make it a sentence of its own"),
    ("phrase", r"\b(?:those|that) of\b", "repeat the noun"),
    ("phrase", r"\b(?:is|are|was|were) of (?:an?|the|one|each|every|all|no)\b(?! (?:kind|type|form|order|same))",
     "use `belongs to`, `has` or `covers`"),
    ("phrase", r"\bit (?:is|was) of\b", "use `its ...`"),
    ("word", r"\bma(?:de|kes?|king)(?: \w+){0,3} again\b", "use `recompute`"),
    ("word", r"\bmov(?:ed?|es|ing)(?: \w+){0,2} away\b", "use `offload`"),
    ("word", r"\bof late\b", "use `recently`, or give the interval"),
    ("word", r"\bthe (?:most|least) (?:that|of)\b", "use `maximum` or `minimum`"),
    ("word", r"\bas far as there (?:is|are)\b", "use `if any`"),
]  # fmt: skip
# words: on
PHRASES = [
    (rule, re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE), advice) for rule, pattern, advice in PATTERNS
]

MARKER = re.compile(r"(?:#|//|<!--) ?words: (off|on)\b")
WORD = re.compile(r"[^\W\d_]{2,}")
# A sentence ends before a capital, and before the next value in `auto: the fastest. off: none`.
SENTENCE = re.compile(r".+?(?:[.!?](?=[\s)\"']+(?:[^a-z\s]|\w+: )|\s*$)|$)", re.DOTALL)
ITEM = re.compile(r"\s*(?:[-*] |\d+\. |\S+ {2,}\S)")
STRING = r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])+'|(?<=\w)'"""  # the last alternative: 1'000'000
SLASHES = re.compile(rf"(?P<code>(?:[^\"']|{STRING})*?)//[/!]*<?(?P<text>.*)")
HASH = re.compile(rf"(?P<code>(?:[^\"']|{STRING})*?)(?<!\S)#+(?P<text>.*)")
LITERAL = re.compile(r'"((?:\\.|[^"\\])*)"')


class Block(NamedTuple):
    """Lines that are read as one text: a comment, a string literal or a paragraph."""

    kind: str  # "comment", "string" or "prose"
    lines: list[tuple[int, str]]


class Finding(NamedTuple):
    lines: list[int]
    rule: str
    text: str
    advice: str


def comments(source: str, pattern: re.Pattern) -> list[Block]:
    """Comments to the end of a line. One that starts at the column of the comment above continues it."""
    blocks: list[Block] = []
    last = (0, -1)
    for number, row in enumerate(source.split("\n"), 1):
        match = None if row.startswith("#!") else pattern.match(row)
        if not match:
            continue
        column = match.end("code")
        if last == (number - 1, column) and not match["code"].strip():
            blocks[-1].lines.append((number, match["text"]))
        else:
            blocks.append(Block("comment", [(number, match["text"])]))
        last = (number, column)
    return blocks


def strings(source: str) -> list[Block]:
    """String literals of C++. A literal that opens a line continues the literal at the end of the line above."""
    blocks: list[Block] = []
    open_line = 0
    for number, row in enumerate(source.split("\n"), 1):
        comment = SLASHES.match(row)
        code = (comment["code"] if comment else row).strip()
        for literal in [] if code.startswith("#include") else LITERAL.finditer(code):
            text = literal[1].replace("\\n", ". ").replace('\\"', ' "')
            if literal.start() == 0 and open_line == number - 1:
                blocks[-1].lines.append((number, text))
            else:
                blocks.append(Block("string", [(number, text)]))
        if code.endswith('"'):
            open_line = number
    return blocks


def numbered(source: str, match: re.Match) -> Block:
    first = source.count("\n", 0, match.start(1)) + 1
    return Block("comment", [(first + i, row.strip(" \t*!")) for i, row in enumerate(match[1].split("\n"))])


def docstrings(source: str) -> list[Block]:
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return []
    blocks = []
    for node in nodes:
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and (text := ast.get_docstring(node, clean=False)):
            first = node.body[0].lineno
            blocks.append(Block("comment", [(first + i, row.strip()) for i, row in enumerate(text.split("\n"))]))
    return blocks


def markdown(source: str) -> list[Block]:
    blocks: list[Block] = []
    fence, open_block = "", False
    for number, row in enumerate(source.split("\n"), 1):
        text = row.strip()
        if mark := re.match(r"```+|~~~+", text):
            fence = "" if fence and text.startswith(fence) else fence or mark[0]
            open_block = False
        elif fence or not text or text.startswith("<!--"):
            open_block = False
        elif text.startswith("|"):
            blocks += [Block("prose", [(number, cell)]) for cell in text.strip("|").split("|")]
            open_block = False
        elif open_block and not ITEM.match(row) and not text.startswith("#"):
            blocks[-1].lines.append((number, text))
        else:
            blocks.append(Block("prose", [(number, text)]))
            open_block = not text.startswith("#")
    return blocks


def blocks_of(name: str, source: str) -> list[Block]:
    path = pathlib.PurePosixPath(name)
    if name.startswith(GENERATED):
        return []
    if path.suffix in {".h", ".cpp", ".cu", ".cuh"}:
        starred = [numbered(source, match) for match in re.finditer(r"/\*(.*?)\*/", source, re.DOTALL)]
        return comments(source, SLASHES) + starred + strings(source)
    if path.suffix == ".py":
        return comments(source, HASH) + docstrings(source)
    if path.suffix == ".md":
        return markdown(source)
    script = source.startswith("#!") and "sh" in source.partition("\n")[0]
    if script or path.name == "CMakeLists.txt" or path.suffix in {".cmake", ".sh", ".toml", ".yml", ".yaml"}:
        return comments(source, HASH)
    return []


def units(block: Block) -> list[list[tuple[int, str]]]:
    """Splits a block where a sentence cannot go on: at an empty line, a list item, a code fence."""
    parts: list[list[tuple[int, str]]] = [[]]
    fenced = False
    for number, text in block.lines:
        fenced ^= text.strip().startswith("```")
        if fenced or not text.strip() or text.strip().startswith(("```", ">>>")):
            parts.append([])
            continue
        if block.kind == "comment" and ITEM.match(text):
            parts.append([])
        parts[-1].append((number, text))
    return [part for part in parts if part]


def plain(text: str) -> str:
    """Blanks out inline code, targets of links and placeholders, at unchanged length."""
    for pattern in (r"`[^`\n]*`", r"(?<=\])\([^)\n]*\)", r"\{[^}\n]*\}", r"https?://\S+"):
        text = re.sub(pattern, lambda match: " X".ljust(len(match[0])) if len(match[0]) > 2 else match[0], text)
    return text


def is_name(block: Block) -> bool:
    """Tells a name or a format among string literals from a sentence."""
    return block.kind == "string" and len(WORD.findall(" ".join(t for _, t in block.lines))) < MIN_STRING_WORDS


def start_finding(block: Block) -> Finding | None:
    number, text = next(((n, t.strip()) for n, t in block.lines if t.strip()), (0, ""))
    first = text if block.kind == "string" else text[:1].upper() + text[1:]  # a string may be the end of a sentence
    if block.kind != "prose" and not is_name(block) and (match := START.match(first)):
        return Finding([number], "start", text, f"start with a noun or a verb, not with `{match[1]}`")
    return None


def unit_findings(unit: list[tuple[int, str]], kind: str):
    text = "".join(row + " " for _, row in unit)
    line_of = [number for number, row in unit for _ in range(len(row) + 1)]  # line number of each character
    readable = plain(text)

    def at(match: re.Match, rule: str, advice: str) -> Finding:
        start, end = match.span()
        return Finding(sorted(set(line_of[start:end])), rule, " ".join(text[start:end].split()), advice)

    for rule, pattern, advice in PHRASES:
        for match in pattern.finditer(readable):
            yield at(match, rule, advice)
    for sentence in SENTENCE.finditer(readable):
        if kind == "comment" and sentence.start() > 0 and (match := START.match(sentence[0].strip())):
            yield at(sentence, "start", f"start with a noun or a verb, not with `{match[1]}`")
        if (count := len(WORD.findall(sentence[0]))) > MAX_WORDS:
            yield at(sentence, "length", f"{count} words: split it, one fact a sentence")


def findings(name: str, source: str) -> list[Finding]:
    quoted, off = set(), False
    for number, row in enumerate(source.split("\n"), 1):
        if marker := MARKER.search(row):
            off = marker[1] == "off"
        if off:
            quoted.add(number)
    found = []
    for block in blocks_of(name, source):
        if start := start_finding(block):
            found.append(start)
        for unit in units(block):
            found += unit_findings(unit, block.kind)
    return sorted((f for f in found if not quoted.intersection(f.lines)), key=lambda f: f.lines[0])


def text_of(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def report(name: str, line: int, finding: Finding) -> None:
    text = finding.text if len(finding.text) <= 100 else finding.text[:97] + "..."
    print(f"{name}:{line}: {finding.rule}: “{text}” -> {finding.advice}")


def list_all(root: pathlib.Path) -> int:
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for name in changes.tracked(root):
        for finding in findings(name, text_of(root / name)):
            report(name, finding.lines[0], finding)
            folder = "/".join(name.split("/")[:2]) if name.count("/") > 1 else name.split("/")[0]
            counts[folder][finding.rule] += 1
            counts["total"][finding.rule] += 1
    rules = ("start", "phrase", "word", "length")
    print(f"\n{'':24}" + "".join(f"{rule:>8}" for rule in rules))
    for folder, found in sorted(counts.items(), key=lambda item: (item[0] == "total", item[0])):
        print(f"{folder:24}" + "".join(f"{found[rule]:8}" for rule in rules))
    return 1 if counts else 0


def main() -> int:
    root = pathlib.Path(changes.git(pathlib.Path.cwd(), "rev-parse", "--show-toplevel").strip() or ".")
    if sys.argv[1:] == ["--all"]:
        return list_all(root)
    if sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    revision, description = changes.base(root)
    added = changes.changed_lines(root, revision)
    count = 0
    for name, lines in sorted(added.items()):
        for finding in findings(name, text_of(root / name)):
            if new := lines.intersection(finding.lines):
                report(name, min(new), finding)
                count += 1
    size = sum(len(lines) for lines in added.values())
    print(f"words: {count} findings in {size} lines changed since {description}", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
