"""The site: `python -m sphinx -W --keep-going docs site`."""

import contextlib
import inspect
import io
import os
import re
import sys
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.ext.napoleon import Config, GoogleDocstring

sys.path.insert(0, str(Path(__file__).parents[1]))

import torchrecmetrics
from torchrecmetrics.cli import main

project = "torchrecmetrics"
author = "the torchrecmetrics authors"
copyright = "the torchrecmetrics authors, Apache-2.0"
release = version = torchrecmetrics.__version__
exclude_patterns = ["pictures.py"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
nitpicky = True
nitpick_ignore_regex = [("py:(?!obj).*", ".*"), ("py:obj", r"typing\..*")]  # types in signatures
toc_object_entries_show_parents = "hide"
intersphinx_mapping = {}
if os.environ.get("LINKS"):  # given a network
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "torchmetrics": ("https://lightning.ai/docs/torchmetrics/stable", None),
    }
html_theme = "furo"
pygments_style, pygments_dark_style = "a11y-light", "github-dark"  # text has a contrast of 4.5
html_title = f"torchrecmetrics {version}"
html_logo = "favicon.svg"
html_favicon = "favicon.svg"
_PROJECT = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
_URLS = dict(re.findall(r'^(Documentation|Source) = "(.*)"$', _PROJECT, re.M))  # of [project.urls], when there is one
html_baseurl = _URLS.get("Documentation", "")
html_theme_options = {  # colours of the pictures
    "light_css_variables": {"color-brand-primary": "#0072b2", "color-brand-content": "#0072b2"},
    "dark_css_variables": {"color-brand-primary": "#7cc4f0", "color-brand-content": "#7cc4f0"},
}
if "Source" in _URLS:
    html_theme_options |= {
        "source_repository": _URLS["Source"],
        "source_branch": "main",
        "source_directory": "docs/",
    }
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


# ------------------------------------------------------------------------------------------- docstrings in Markdown

METRICS = {page.stem for page in Path(__file__).parent.glob("reference/metrics/*.md")}
_NAMES = "|".join(sorted(torchrecmetrics.__all__, key=len, reverse=True))
_PUBLIC = re.compile(rf"(?:torchrecmetrics\.)?((?:{_NAMES})(?:\.[a-z_]\w*)?)")


_TYPED = re.compile(rf"(?<!\[)`(trm\.((?!HR\b)(?:{_NAMES}))\b[^`<>]*)`(?!\])")


def _code(text: str) -> str:
    """Return code, as a link where it is a public name."""
    public = _PUBLIC.fullmatch(text)
    return f":py:obj:`{text} <torchrecmetrics.{public[1]}>`" if public and public[1] != "HR" else f"``{text}``"


def _table(text: str) -> str:
    """Return a Markdown table as a list table."""
    rows = [re.split(r" \| ", line.strip().strip("|").strip()) for line in text.splitlines()]
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in rows[:1] + rows[2:]:
        cells = row + [""] * (len(rows[0]) - len(row))
        lines += [f"   {' ' if number else '*'} - {_inline(cell.strip())}" for number, cell in enumerate(cells)]
    return "\n".join(lines)


def _inline(text: str) -> str:
    """Return a paragraph of Markdown as reStructuredText."""
    parts = re.split(r"(`[^`]+`)", text)
    parts[::2] = [re.sub(r"[|@]", r"\\\g<0>", part) for part in parts[::2]]  # no substitution, no address
    parts[1::2] = [_code(part[1:-1]) for part in parts[1::2]]
    parts[2::2] = [rf"\ {part}" if part[:1].isalnum() else part for part in parts[2::2]]  # `Rows`s
    return re.sub(r"\[([^\]\n]+)\]\((http[^)]+)\)", r"`\1 <\2>`__", "".join(parts))


def to_rst(text: str) -> str:
    """Return a docstring in Markdown as reStructuredText; a colon in the section "Returns" does not end a type."""
    paragraphs = text.split("\n\n")
    for number, paragraph in enumerate(paragraphs):
        if paragraph.lstrip().startswith("|"):
            paragraphs[number] = _table(paragraph)
        elif not re.search(r"^ *>>> ", paragraph, re.M):
            paragraphs[number] = _inline(paragraph)
    return re.sub(r"^Returns:$", ":returns:", "\n\n".join(paragraphs), flags=re.M)


_SCORES = (
    "- `update(scores, {}exclude=)`: scores [B, I], float, higher is better; {}exclude: item ids [B, H] or bool [B, I]"
)
_TARGET = "target: item ids [B] or [B, T], -1 is padding, or bool [B, I]; "
_HISTORY = "\n- `update(Scores(scores, history=))`: history, item ids [B, H]"
_LISTS = "\n- `update(Lists(item_ids{}))`: item ids [B, K], best first, -1 is padding"


def shapes(cls: type) -> str:
    """Return the shapes of the arguments of a metric's `update`, as a list in Markdown."""
    of_lists = issubclass(cls, torchrecmetrics.ListMetric | torchrecmetrics.ItemCountMetric)
    target = not of_lists or getattr(cls, "reads_target", False)
    text = _SCORES.format(*(("target, ", _TARGET) if target else ("", "")))
    text += _HISTORY * (of_lists and getattr(cls, "reads_history", False))
    letters = "\n\nB: rows of the batch, I: items, T: targets of a row, H: history, K: length of the lists."
    return text + _LISTS.format(", target" * target) + letters


def _on_docstring(app, what, name, obj, options, lines):
    """Convert a docstring; "object" keeps napoleon from reading the first line of a property as "type: text"."""
    text = to_rst("\n".join(lines))
    lines[:] = GoogleDocstring(text, Config(napoleon_use_rtype=False), app, "object", name, obj, options).lines()
    if name.rpartition(".")[2] in METRICS:
        lines += ["", ".. rubric:: Shapes", "", *to_rst(shapes(obj)).splitlines(), ""]
        lines += [":doc:`More inputs </reference/inputs>`", ""]


# --------------------------------------------------------------------------------------------------- sources of pages


def _help(command: str) -> str:
    """Return a block with the help of a command."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main([command, "--help"])
    return f"```text\n{printed.getvalue()}```"


def _links(text: str) -> str:
    """Return prose in which code such as `trm.evaluate` is a link; code blocks, headings and links stay."""
    parts = re.split(r"(^ *```.*?^ *```|^#.*?$)", text, flags=re.M | re.S)
    for number, part in enumerate(parts[::2]):
        parts[2 * number] = _TYPED.sub(r"{py:obj}`\1 <torchrecmetrics.\2>`", part)
    return "".join(parts)


def _indexed(name: str, page: str) -> str:
    """Return the page of a metric with its names as index entries, which the search lists first."""
    table = (Path(__file__).parent / "reference" / "metrics.md").read_text(encoding="utf-8")
    also_called = re.search(rf"^\| \[{name}\]\(\S+\)(.*?)\|", table, re.M)[1]
    first_sentence = re.search(r"\n\n(.*?)\. ", page)[1].replace("@k", "")
    names = [name, *first_sentence.split(", "), *re.findall(r"\w(?:[\w -]*\w)?", also_called)]
    names += [re.sub(r"(?<=[a-z])(?=[A-Z])", " ", each) for each in names]  # HitRate: hit rate
    entries = ", ".join(f"! {entry}" for entry in dict.fromkeys(map(str.lower, names)))
    return page.replace("\n", f"\n\n```{{index}} {entries}\n```\n", 1)


def _on_source(app, name, source):
    """Add to a page what its file has not: names to search for, links, the help of commands, dark pictures."""
    if name.startswith("reference/metrics/"):
        source[0] = _indexed(name.rpartition("/")[2], source[0])
    text = re.sub(r"<!-- help: (\w+) -->", lambda mark: _help(mark[1]), _links(source[0]))
    light, dark = (rf"![\1](\2-{kind}.svg){{.only-{kind}}}" for kind in ("light", "dark"))
    source[0] = re.sub(r"!\[([^\]]+)\]\((\S+)-light\.svg\)", f"{light}\n{dark}", text)


# ---------------------------------------------------------------------------------------------------------- signatures


def metric_signature(cls: type) -> str:
    """Return the signature of a metric as people type it: `(k=None, *, gain="linear", ...)`; options are "..."."""
    parts, keywords = [], []
    for parameter in list(inspect.signature(cls.__init__).parameters.values())[1:]:
        default = parameter.default
        value = "" if default is parameter.empty else f'="{default}"' if isinstance(default, str) else f"={default!r}"
        if parameter.kind is parameter.KEYWORD_ONLY:
            keywords.append(parameter.name + value)
        elif parameter.kind is not parameter.VAR_KEYWORD:
            parts.append(parameter.name + value)
    if cls._signature and (cls._signature.reads_catalogue or issubclass(cls, torchrecmetrics.ItemCountMetric)):
        keywords.append("catalogue")
    return f"({', '.join([*parts, *(['*', *keywords] if keywords else []), '...'])})"


def _on_signature(app, what, name, obj, options, signature, result):
    """Shorten the signatures of metrics, and elsewhere the types of arguments that are passed on."""
    if inspect.isclass(obj) and issubclass(obj, torchrecmetrics.RankingMetric):
        return metric_signature(obj), None
    if signature:
        signature = re.sub(r"(\*\*?\w+): [~\w.]*(?:Any|Unpack\[[~\w.]+\])", r"\1", signature)
    return "(...)" if signature == "(*args, **kwargs)" else signature, result


# ------------------------------------------------------------------------------------------------------------ formulas


def _mathml(self, node, display):
    self.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app):
    """Register what Sphinx does not do by itself."""
    os.environ["COLUMNS"] = "86"  # of the help of commands
    app.connect("source-read", _on_source)
    app.connect("autodoc-process-docstring", _on_docstring)
    app.connect("autodoc-process-signature", _on_signature)
    app.add_html_math_renderer(
        "mathml",
        (lambda self, node: _mathml(self, node, "inline"), None),
        (lambda self, node: _mathml(self, node, "block"), None),
    )
