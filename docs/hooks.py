"""What the site needs beyond MkDocs' own: formulas as MathML, which browsers draw without a script."""

import re

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(html, **_):
    """Write every formula that arithmatex has marked as MathML."""

    def mathml(match):
        tag, opening, latex = match.groups()
        latex = latex.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        return f'<{tag} class="arithmatex">{convert(latex, display="block" if opening == "[" else "inline")}</{tag}>'

    return FORMULA.sub(mathml, html)
