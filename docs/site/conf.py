"""Sphinx configuration of the documentation site; tools/site.py runs it on build/site-source."""

import pathlib
import re

import dovetail
from docutils import nodes
from sphinx import addnodes

project = "Dovetail"
release = version = dovetail.__version__
copyright = "the Dovetail authors, Apache-2.0"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
include_patterns = ["*.md", "docs/*.md", "docs/design/*.md", "bench/results/*.md", "examples/**.md", "reference/**"]
exclude_patterns = ["README.md", "docs/site/**"]  # the start page includes README.md
default_role = "literal"

myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"exclude-members": "extra_repr"}
python_use_unqualified_type_names = True
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False

maximum_signature_line_length = 88  # a longer one has a line for each argument
toc_object_entries_show_parents = "hide"
highlight_language = "none"

html_theme = "furo"
html_title = "Dovetail"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_domain_indices = False

HEADER = re.compile(r"(?:dovetail/)?((?:[a-z_]+/)+[a-z0-9_]+)\.h")


def header_page(env, path: str) -> str | None:
    """Document of the header at `path`, with or without the folder `dovetail`; None where there is none."""
    match = HEADER.fullmatch(path)
    document = f"reference/cpp/{match[1]}" if match else None
    return document if document in env.found_docs else None


def link_headers(app, doctree) -> None:
    """Turn paths of headers, in links or between backticks, into links to their pages, and README.md to the start."""
    here = pathlib.PurePosixPath(app.env.docname).parent
    for node in list(doctree.findall(nodes.literal)):
        document = header_page(app.env, node.astext())
        if document and not isinstance(
            node.parent, nodes.reference | addnodes.pending_xref | addnodes.download_reference
        ):
            wrap(app, node, node.deepcopy(), document)
    for node in list(doctree.findall(addnodes.download_reference)):
        target = (pathlib.Path(app.srcdir) / here / node["reftarget"].lstrip("/")).resolve()
        root = pathlib.Path(app.confdir).parents[1]
        path = target.relative_to(root).as_posix() if target.is_relative_to(root) else ""
        document = "index" if path == "README.md" else header_page(app.env, path)
        if document:
            wrap(app, node, nodes.inline("", "", *node.children), document)


def give_title(app, docname: str, source: list[str]) -> None:
    """A title for docs/config.md, which `dovetail config --reference` writes without one."""
    if docname == "docs/config" and not source[0].startswith("# "):
        source[0] = "# Config reference\n\n" + source[0]


def wrap(app, node, content, document: str) -> None:
    reference = addnodes.pending_xref(
        "", content, refdomain="std", reftype="doc", reftarget="/" + document, refexplicit=True, refwarn=True
    )
    reference["refdoc"] = app.env.docname
    node.replace_self(reference)


def setup(app) -> dict:
    app.connect("source-read", give_title)
    app.connect("doctree-read", link_headers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
