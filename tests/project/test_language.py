"""Code and docs are in plain English: words that readers had to decode do not come back."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = [*(ROOT / "torchrecmetrics").rglob("*.py")]
CODE = [*PACKAGE, *(ROOT / "examples").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
WORDS = re.compile(
    r"\brooms?\b|(?<![._\"])\bfloors?\b(?![_(\"])|\bhouses?\b|\bdoors?\b(?!-|\.)|what waits|nobody can tell"
    r"|\bonce a batch\b|\bwas worth\b|\ba (?:line|row|batch|number) an? (?:metric|row|user|item|list|key)\b"
    r'|"""(?:Whether|What|Who|So many) ',
    re.IGNORECASE,
)
LOCALS = {"one", "its", "some", "several", "every", "those", "each", "found", "own", "asked", "here", "theirs", "mine"}
LOCALS |= {"whole", "told", "near", "within", "behind", "things", "stuff"}


def test_words():
    """Code and docs have no word and no beginning of a docstring that readers had to decode."""
    found = []
    for path in [*CODE, *PAGES]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if WORDS.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found


def test_names_of_locals():
    """No variable of the package has a name such as `one` or `its`: a name is a noun for its value."""
    for path in PACKAGE:
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        assert not bound & LOCALS, path


def test_code_on_pages_is_narrow():
    """Code on pages has at most 88 columns, which a page shows without scrolling."""
    wide = []
    for page in PAGES:
        for block in re.findall(r"^ *```python\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.M | re.S):
            wide += [f"{page.name}: {line}" for line in block.splitlines() if len(line) > 88]
    assert not wide
