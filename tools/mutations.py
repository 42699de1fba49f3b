"""Checks that tests notice a technique that is missing: breaks the source in one place, builds and runs the tests.

usage: ./dev mutations [NAME...]

A mutation replaces one piece of a source file. Results stay right, and a technique is gone. An exchange may ignore its
layout, for example. The test named beside a mutation must fail. The file is restored afterwards. Prints a line for each
mutation and ends with 1 if a test passes in spite of it.
"""

import pathlib
import subprocess
import sys
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"


@dataclass
class Mutation:
    name: str
    file: str
    old: str
    new: str
    program: str
    tests: str  # as --gtest_filter takes it


EXPERTS, EXCHANGE = "dovetail/moe/parallel_experts.cpp", "dovetail/comm/exchange.cpp"
ROWS, GATHER = "dovetail/moe/row_exchange.cpp", "dovetail/moe/gathered_experts.cpp"
MUTATIONS = [
    Mutation(
        "layout ignored",
        EXPERTS,
        "  check_layout(layout, ranks, local);\n",
        "  if (layout.shards != ranks.placement.cut || layout.overlap != 1 || layout.hierarchical ||\n"
        "      !layout.shadowed.empty())\n"
        "    return parallel_feed_forward(x, weight, expert, slot, local, ranks,\n"
        "                                 {.shards = ranks.placement.cut}, capacity);\n",
        "test_moe",
        "Traffic.*",
    ),
    Mutation(
        "2DH is linear",
        ROWS,
        "  if (layout.hierarchical) {\n",
        "  if (layout.hierarchical && placement.ranks < 0) {\n",
        "test_moe",
        "Traffic.TwoStages*",
    ),
    Mutation(
        "shadowed experts ignored",
        EXPERTS,
        "  check_layout(layout, ranks, local);\n",
        "  if (!layout.shadowed.empty()) {\n"
        "    ExpertLayout none = layout;\n"
        "    none.shadowed.clear();\n"
        "    return parallel_feed_forward(x, weight, expert, slot, local, ranks, none, capacity);\n"
        "  }\n",
        "test_moe",
        "Traffic.Shadowed*",
    ),
    Mutation(
        "a row for each choice",
        "dovetail/moe/parts.cpp",
        "      if (row < first) {",
        "      if (row < first || true) {",
        "test_moe",
        "Traffic.ATokenTravelsOnce*",
    ),
    Mutation(
        "overlap is one chunk",
        ROWS,
        "dropless_chunks(x, weight, parts, local, ranks, layout)",
        "dropless_chunks(x, weight, parts, local, ranks,\n"
        "    {.shards = layout.shards, .hierarchical = layout.hierarchical})",
        "test_moe",
        "Traffic.EachChunk*",
    ),
    Mutation(
        "chunks one after another",
        ROWS,
        "    if (i + 1 < chunks.size()) chunks[i + 1]->start();\n    chunks[i]->compute();\n",
        "    chunks[i]->compute();\n    if (i + 1 < chunks.size()) chunks[i + 1]->start();\n",
        "test_moe",
        "Traffic.TheNextChunk*",
    ),
    Mutation(
        "linear start blocks",
        EXCHANGE,
        "  auto work = group.all_to_all_async(rows, x, receive, send);\n",
        "  auto work = group.all_to_all_async(rows, x, receive, send);\n  work->wait();\n",
        "test_comm",
        "*StartsBeforeTheSlowest*/linear_2",
    ),
    Mutation(
        "2DH start blocks",
        EXCHANGE,
        "  return {nodes_.stages, nodes_.stages->start([plan = std::move(plan), rows = x.detach()] {\n"
        "            return plan.reversed_ ? plan.run_backward(rows) : plan.run_forward(rows);\n"
        "          })};\n",
        "  auto staged = nodes_.stages->start([plan = std::move(plan), rows = x.detach()] {\n"
        "    return plan.reversed_ ? plan.run_backward(rows) : plan.run_forward(rows);\n"
        "  });\n"
        "  staged.wait();\n"
        "  return {nodes_.stages, std::move(staged)};\n",
        "test_comm",
        "*StartsBeforeTheSlowest*/nodes_of_2_in_4",
    ),
    Mutation(
        "gathered experts stay",
        GATHER,
        "    gathered->release();\n    return y;\n",
        "    return y;\n",
        "test_moe",
        "AllExperts.*",
    ),
]


def run(*command: str, timeout: int | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


def build(program: str) -> None:
    made = run("ninja", "-C", str(BUILD), program)
    if made.returncode != 0:
        sys.exit(f"mutations: {program} does not build:\n{made.stdout[-3000:]}")


def notices(mutation: Mutation) -> bool:
    """Builds with the mutation and returns True if a test fails."""
    path = ROOT / mutation.file
    source = path.read_text()
    if source.count(mutation.old) != 1:
        sys.exit(f"mutations: {mutation.name}: {mutation.file} has not one place like\n{mutation.old}")
    path.write_text(source.replace(mutation.old, mutation.new))
    try:
        build(mutation.program)
        return (
            run(str(BUILD / "bin" / mutation.program), f"--gtest_filter={mutation.tests}", timeout=300).returncode != 0
        )
    finally:
        path.write_text(source)


def main() -> None:
    names = sys.argv[1:]
    known = [mutation.name for mutation in MUTATIONS]
    for name in names:
        if name not in known:
            sys.exit(f"mutations: no {name}; there are: {', '.join(known)}")
    passed = []
    for mutation in MUTATIONS:
        if names and mutation.name not in names:
            continue
        noticed = notices(mutation)
        print(f"{'noticed' if noticed else 'NOT NOTICED'}: {mutation.name} ({mutation.tests})", flush=True)
        if not noticed:
            passed.append(mutation.name)
    for program in sorted({mutation.program for mutation in MUTATIONS}):
        build(program)
    sys.exit(1 if passed else 0)


if __name__ == "__main__":
    main()
