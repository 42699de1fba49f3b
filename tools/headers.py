"""Pages of the documentation site from the contracts in the C++ headers: one page a header, one index a folder.

A header is read from top to bottom, as in an editor, and its order is kept. A `///` comment belongs to the
declarations that follow it without an empty line. Declarations become objects of Sphinx's C++ domain, which links
the types in them and puts them into the search. Private members, friends and bodies are left out, and so are the
files `*_inl.h`, which only kernels include.
"""

import os
import pathlib
import re
import sys
import textwrap
from typing import NamedTuple

import tree_sitter
import tree_sitter_cpp

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language()))
TYPES = {"class_specifier": "class", "struct_specifier": "struct", "enum_specifier": "enum"}
TERM = re.compile(r"""([A-Za-z_][\w.]*(?:, [A-Za-z_]\w*)*|"[^"]+") {2,}(\S.*)""")


class Item(NamedTuple):
    """One declaration, or a text between declarations (kind "text")."""

    kind: str  # suffix of the directive: cpp:<kind>
    signatures: list[str]
    comment: list[str]  # without its slashes
    members: list["Item"]
    first_line: int
    last_line: int


def public_headers(root: pathlib.Path) -> list[str]:
    """Paths of the installed headers (cmake/install.cmake), relative to the folder `dovetail`."""
    paths = sorted(path.relative_to(root / "dovetail") for path in (root / "dovetail").rglob("*.h"))
    return [p.as_posix() for p in paths if "gloo_declarations" not in p.parts and not p.name.endswith("_inl.h")]


def one_line(text: str) -> str:
    """Source text without comments, line breaks, a separator at its end, and what Sphinx does not parse."""
    text = re.sub(r" ?/\*.*?\*/|//[^\n]*|\\\n", "", text)
    text = re.sub(r"\s+", " ", re.sub(r"DOVETAIL_HOST_DEVICE |alignas\([^)]*\) ", "", text))
    return re.sub(r" = \{\..*\}$", "", text.strip().rstrip(",;")).strip()


def words(node: tree_sitter.Node, end: int | None = None) -> str:
    """Source text of `node` on one line, up to byte `end` of the file."""
    return one_line(node.text[: None if end is None else end - node.start_byte].decode())


def find(node: tree_sitter.Node, *types: str) -> tree_sitter.Node | None:
    """The first node of one of `types` among `node`'s declarators, however nested."""
    while node is not None and node.type not in types:
        node = node.child_by_field_name("declarator") or next(
            (c for c in node.named_children if c.type.endswith("_declarator")), None
        )
    return node


def of_type(node: tree_sitter.Node, prefix: str) -> Item | None:
    """A class, struct or enum with a body; None for a forward declaration."""
    body = node.child_by_field_name("body")
    if body is None:
        return None
    head = words(node, body.start_byte).replace(" final", "")
    kind, name = head.split(" ", 1)
    if kind == "enum":
        kind, name = ("enum-class", name.split(" ", 1)[1]) if name.startswith(("class ", "struct ")) else (kind, name)
        members = read(body, "enumerator")
    else:
        members = read(body, "private" if kind == "class" else "public")
    lines = node.start_point.row, node.end_point.row
    return Item(kind, [(prefix + name).strip()], [], members, *lines)


def of_variables(node: tree_sitter.Node) -> list[str]:
    """`int rank = 0, size = 1;` as one signature a variable."""
    declarators = node.children_by_field_name("declarator")
    begin = words(node, declarators[0].start_byte)
    found = []
    for i, declarator in enumerate(declarators):
        end = declarators[i + 1].start_byte if i + 1 < len(declarators) else node.end_byte
        tail = node.text[declarator.start_byte - node.start_byte : end - node.start_byte].decode()
        found.append(f"{begin} {one_line(tail)}")
    return found


def of_declaration(node: tree_sitter.Node, prefix: str = "") -> list[Item]:
    """The items of one declaration; a nested type that also declares a member gives two."""
    lines = node.start_point.row, node.end_point.row
    if node.type == "template_declaration":
        inner = node.named_children[-1]
        prefix = f"{prefix}template {words(node.child_by_field_name('parameters'))} "
        return [item._replace(first_line=lines[0]) for item in of_declaration(inner, prefix)]
    if node.type in TYPES:
        item = of_type(node, prefix)
        return [item] if item else []
    if node.type == "alias_declaration":
        return [Item("type", [prefix + words(node).removeprefix("using ")], [], [], *lines)]
    if node.type in ("using_declaration", "friend_declaration"):
        return []
    function = find(node, "function_declarator", "operator_cast")
    several = len(node.children_by_field_name("declarator")) > 1
    if function is not None and not is_variable(node):
        if several:
            return [Item("function", of_variables(node), [], [], *lines)]
        end = next(
            (c.start_byte for c in node.children if c.type in ("compound_statement", "field_initializer_list")), None
        )
        return [Item("function", [prefix + words(node, end)], [], [], *lines)]
    items = []
    kind = node.child_by_field_name("type")
    if kind is not None and kind.type in TYPES and kind.child_by_field_name("body"):
        items = of_declaration(kind)
        if not node.children_by_field_name("declarator"):
            return [item._replace(last_line=lines[1]) for item in items]
        name = words(kind.child_by_field_name("name"))
        declarator = node.children_by_field_name("declarator")[0]
        tail = node.text[declarator.start_byte - node.start_byte :].decode()
        return [*items, Item("member", [f"{name} {one_line(tail)}"], [], [], *lines)]
    if not node.children_by_field_name("declarator"):
        return []
    return [Item("member", [prefix + s for s in of_variables(node)], [], [], *lines)]


def is_variable(node: tree_sitter.Node) -> bool:
    """A variable whose type or initial value contains a function: a std::function, or a pointer to a function."""
    function = find(node, "function_declarator")
    pointer = function is not None and function.child_by_field_name("declarator").type == "parenthesized_declarator"
    declarator = node.child_by_field_name("declarator")
    return pointer or (
        declarator is not None and declarator.type in ("init_declarator", "field_identifier", "identifier")
    )


def shown(node: tree_sitter.Node, comment: list[str]) -> bool:
    """False for what says nothing: deleted or defaulted members without a comment."""
    deleted = any(c.type in ("delete_method_clause", "default_method_clause") for c in node.children)
    return bool(comment) or not deleted


def read(body: tree_sitter.Node, access: str = "public") -> list[Item]:
    """The items of a namespace, class or enum in the order of the source."""
    items: list[Item] = []
    comment: list[str] = []
    comment_end = -2
    for node in body.children:
        row = node.start_point.row
        if node.type == "comment":
            text = node.text.decode()
            if text.startswith("///<"):
                if items and items[-1].kind != "text" and row - items[-1].last_line <= 1 and access != "private":
                    items[-1].comment.append(text[4:].strip())
                    items[-1] = items[-1]._replace(last_line=row)
            elif text.startswith("///"):
                if comment and row > comment_end + 1:
                    items.append(Item("text", [], comment, [], row, comment_end))
                    comment = []
                comment.append(text[3:].removeprefix(" ").rstrip())
                comment_end = row
            continue
        if comment and row > comment_end + 1:
            items.append(Item("text", [], comment, [], row, comment_end))
            comment = []
        if node.type == "access_specifier":
            access = words(node)
        elif access == "enumerator":
            if node.type == "enumerator":
                items.append(Item("enumerator", [words(node)], comment, [], row, node.end_point.row))
                comment = []
        elif node.is_named and access != "private" and shown(node, comment):
            found = of_declaration(node)
            if found:
                add(items, found, comment)
            comment = []
        elif node.is_named:
            comment = []
    return items


def add(items: list[Item], found: list[Item], comment: list[str]) -> None:
    """Append what one declaration gave; without a comment of its own it shares the comment above."""
    first = found[0]
    above = items[-1] if items else None
    joins = (
        above is not None
        and not comment
        and first.kind == above.kind == "function"
        and first.first_line == above.last_line + 1
    )
    if joins:
        items[-1] = above._replace(signatures=above.signatures + first.signatures, last_line=first.last_line)
    else:
        items.append(first._replace(comment=comment))
    items.extend(found[1:])


class Header(NamedTuple):
    path: str  # relative to the folder `dovetail`
    introduction: list[str]
    namespaces: list[tuple[str, list[Item]]]

    def summary(self) -> str:
        """The first sentence of its comments that has more than one word."""
        comments = [self.introduction, *(item.comment for _, items in self.namespaces for item in items)]
        sentences = (re.split(r"(?<=[.:;]) (?=[A-Z`(])", " ".join(c).split("  ")[0])[0] for c in comments)
        return next((s for s in sentences if " " in s), "").rstrip(":;")


def read_header(root: pathlib.Path, path: str) -> Header:
    tree = PARSER.parse((root / "dovetail" / path).read_bytes())
    introduction: list[str] = []
    namespaces: list[tuple[str, list[Item]]] = []

    def scan(node: tree_sitter.Node, scope: str) -> None:
        items: list[Item] = []
        for child in node.children:
            if child.type == "namespace_definition" and child.child_by_field_name("name"):
                inside = f"{scope}::{words(child.child_by_field_name('name'))}".removeprefix("::")
                body = child.child_by_field_name("body")
                if items := read(body):
                    namespaces.append((inside, items))
                scan(body, inside)
            elif child.type == "comment" and not scope and child.text.startswith(b"///"):
                introduction.append(child.text.decode()[3:].removeprefix(" ").rstrip())
            elif child.type == "preproc_function_def" and introduction:
                head = words(child, child.child_by_field_name("value").start_byte)
                namespaces.append(("", [Item("macro", [head.removeprefix("#define ")], introduction[:], [], 0, 0)]))
                introduction.clear()

    scan(tree.root_node, "")
    return Header(path, introduction, namespaces)


def inline(text: str) -> str:
    """Prose of a comment in reStructuredText; between backticks stays as it is."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        f"``{part[1:-1].strip()}``\\ "
        if part.startswith("`") and len(part) > 2
        else re.sub(r"([\\*`|_])", r"\\\1", part)
        for part in parts
    )


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def rows_of(lines: list[str]) -> list[tuple[str, str]] | None:
    """Aligned terms and what is said of them, with continued lines joined; None where `lines` are none such."""
    rows: list[tuple[str, str]] = []
    first = indent_of(lines[0])
    for line in lines:
        match = TERM.fullmatch(line.strip()) if indent_of(line) == first else None
        if match:
            rows.append((match[1], match[2]))
        elif rows and indent_of(line) > first:
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
        else:
            return None
    return rows


def block(lines: list[str]) -> list[str]:
    """One paragraph of a comment, which may go over into a list, aligned terms or code."""
    first = indent_of(lines[0])
    if first >= 4 or (first >= 2 and any(re.search(r"\S {3,}\S.* {3,}\S| = ", line) for line in lines)):
        width = min(indent_of(line) for line in lines)
        return [".. code-block:: text", "", *("   " + line[width:] for line in lines)]
    if rows := rows_of(lines):
        if sum(bool(re.search(r" {3,}", said)) for _, said in rows) > 1:
            return [".. code-block:: text", "", *("   " + line[first:] for line in lines)]
        terms = [line for term, said in rows for line in (inline(term), "   " + inline(said))]
        return [".. rst-class:: terms", "", *terms]
    return [inline(line.strip()) for line in lines]


def pieces(lines: list[str]) -> list[list[str]]:
    """Runs of lines that are one block each."""
    found: list[list[str]] = []
    shape = None
    for line in lines:
        if not line.strip():
            shape = None
            continue
        depth = indent_of(line)
        is_item = re.match(r"\s*(-|\d+\.) ", line)
        is_term = TERM.fullmatch(line.strip()) is not None
        if is_item:
            now = "item"
        elif shape in ("item", "term") and depth > (indent_of(found[-1][0])):
            now = shape
        elif is_term:
            now = "term"
        else:
            now = "indented" if depth >= 2 else "prose"
        if now != shape or is_item:
            found.append([])
        found[-1].append(line)
        shape = now
    return found


def rest(lines: list[str]) -> list[str]:
    """A comment in reStructuredText."""
    out: list[str] = []
    for piece in pieces(lines):
        item = re.match(r"\s*(-|\d+\.) ", piece[0])
        if item:
            text = " ".join(line.strip() for line in piece)
            mark, said = text.split(" ", 1)
            out += [f"{mark} {inline(said)}", ""]
        else:
            out += [*block(piece), ""]
    return out


def directive(item: Item, scope: str, namespaces: set[str]) -> list[str]:
    if item.kind == "text":
        return [*rest(item.comment), ""]
    name = re.search(r"([\w:]+)\(", item.signatures[0])
    if item.kind == "function" and name and f"{scope}::{name[1]}" in namespaces:  # Sphinx has one object of a name
        return [".. code-block:: cpp", "", *(f"   {s};" for s in item.signatures), "", *rest(item.comment)]
    out = []
    groups = [[s] for s in item.signatures] if item.kind == "member" else [item.signatures]
    domain = "c:macro" if item.kind == "macro" else f"cpp:{item.kind}"
    for i, signatures in enumerate(groups):
        indent = f"\n{' ' * (len(domain) + 6)}"
        out += [f".. {domain}:: {indent.join(signatures)}", ""]
        body = rest(item.comment) if i == len(groups) - 1 else []
        body += [line for member in item.members for line in directive(member, "", set())]
        out += [textwrap.indent(line, "   ") for line in body]
        out += [""]
    return out


def page(header: Header, namespaces: set[str]) -> str:
    title = f"dovetail/{header.path}"
    folder = header.path.split("/")[0]
    up = "../" * (header.path.count("/") - 1)
    out = [":orphan:", "", title, "=" * len(title), ""]
    out += [f":doc:`C++ </reference/cpp/index>` / :doc:`dovetail/{folder} <{up}index>`", ""]
    out += [".. code-block:: cpp", "", f'   #include "{title}"', "", *rest(header.introduction)]
    for name, items in header.namespaces:
        out += [f".. cpp:namespace:: {name or 'NULL'}", ""]
        for item in items:
            out += directive(item, name, namespaces)
    return "\n".join(out) + "\n"


def write_pages(root: pathlib.Path, out: pathlib.Path) -> None:
    """One page a header, an index a folder and an index of folders, under `out`."""
    headers = [read_header(root, path) for path in public_headers(root)]
    folders = list(dict.fromkeys(header.path.split("/")[0] for header in headers))
    namespaces = {name for header in headers for name, _ in header.namespaces}
    for header in headers:
        file = out / pathlib.Path(header.path).with_suffix(".rst")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page(header, namespaces))
        changed = max((root / "dovetail" / header.path).stat().st_mtime, pathlib.Path(__file__).stat().st_mtime)
        os.utime(file, (changed, changed))  # Sphinx reads again what is newer than its last build
    for folder in folders:
        inside = [header for header in headers if header.path.startswith(folder + "/")]
        lines = [".. rst-class:: terms", ""]
        for header in inside:
            target = f"/reference/cpp/{header.path.removesuffix('.h')}"
            said = inline(header.summary()) or "No comment."
            lines += [f":doc:`{header.path.removeprefix(folder + '/')} <{target}>`", f"   {said}"]
        title = f"dovetail/{folder}"
        (out / folder / "index.rst").write_text("\n".join([title, "=" * len(title), "", *lines, ""]))
    names = "\n".join(f"   {folder}/index" for folder in folders)
    (out / "index.rst").write_text((root / "docs/site/cpp.rst").read_text() + f"\n.. toctree::\n\n{names}\n")


if __name__ == "__main__":
    write_pages(pathlib.Path(__file__).resolve().parents[1], pathlib.Path(sys.argv[1]))
