"""Counts how many sampled lines tokenize as Python.

    dovetail generate ... | python tools/python_lines.py [--at-least 18] [FILE ...]

Takes the first 20 lines that are not blank, each alone and without its indentation, and runs Python's own `tokenize`
over it. A line may have unmatched brackets, since statements continue over lines. Unterminated strings and
characters that Python does not know are errors.
"""

import argparse
import fileinput
import io
import sys
import tokenize

SAMPLED = 20
# Errors of tokenize, by version, when only the rest of the statement is missing.
UNFINISHED = ("EOF in multi-line", "unexpected EOF in multi-line", "unmatched", "unterminated triple-quoted string")


def tokenizes(line):
    try:
        for token in tokenize.generate_tokens(io.StringIO(line.strip() + "\n").readline):
            # Before 3.12 what no rule matches is an ERRORTOKEN; since then it raises.
            if token.type == tokenize.ERRORTOKEN:
                return False
    except tokenize.TokenError as error:
        return str(error.args[0]).startswith(UNFINISHED)
    except SyntaxError:
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="*", help="read these instead of standard input")
    parser.add_argument("--at-least", type=int, metavar="N", help="exit with 1 when fewer tokenize")
    arguments = parser.parse_args()
    sample = []
    with fileinput.input(arguments.files, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.strip():
                sample.append(line)
            if len(sample) == SAMPLED:
                break
    good = sum(tokenizes(line) for line in sample)
    print(f"{good} of {len(sample)} lines tokenize as Python")
    if arguments.at_least is not None and good < arguments.at_least:
        sys.exit(1)


if __name__ == "__main__":
    main()
