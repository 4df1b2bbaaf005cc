"""The page of messages quotes messages that the library raises."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "messages.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"^\| `([^`]+)` \| [A-Z`]", PAGE, re.M)


def texts():
    """Return every text of the package, with "*" in place of values; adjacent literals are one text."""
    for path in sorted((ROOT / "torchrecmetrics").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "*" for part in node.values)


def test_quoted_messages_are_texts_of_the_code():
    """NDCG on the page stands for a value that the code fills in."""
    patterns = {message: re.escape(message).replace("NDCG", r"(NDCG|\*)") for message in QUOTED}
    code = "\n".join(texts())

    assert len(QUOTED) > 10
    assert not [message for message, pattern in patterns.items() if not re.search(pattern, code)]
