"""What the site needs beyond MkDocs' own: formulas as MathML, and names in docstrings as links."""

import re

from latex2mathml.converter import convert

import torchrecmetrics as trm

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
NAMES = "|".join(sorted(trm.__all__, key=len, reverse=True))
TAKEN = r"(<(?:a|autoref|h\d|label)\b[^>]*>(?:[^<]* )?)?"
NAMED = re.compile(rf"{TAKEN}<code>(torchrecmetrics\.)?((?:{NAMES})(?:\.\w+)?)</code>")


def on_page_content(html, page, **_):
    """Write formulas that arithmatex has marked as MathML; in the reference, link names that stand as code."""

    def mathml(match):
        tag, opening, latex = match.groups()
        latex = latex.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        return f'<{tag} class="arithmatex">{convert(latex, display="block" if opening == "[" else "inline")}</{tag}>'

    def link(match):
        inside, package, name = match.groups()
        if inside is not None or name == "HR":
            return match[0]
        return f'<autoref identifier="torchrecmetrics.{name}" optional><code>{package or ""}{name}</code></autoref>'

    html = FORMULA.sub(mathml, html)
    return NAMED.sub(link, html) if page.url.startswith("reference/") else html
