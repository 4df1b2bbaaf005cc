"""Blocks of README and docs run in the order of their page and print the output that the page shows."""

import contextlib
import importlib
import io
import re
import shutil

import pytest
from pages import PAGES, ROOT, TORCHRUN, Reader, blocks

import torchrecmetrics as trm

BLOCKS = [block for page in PAGES for block in blocks(page)]
READERS = {}  # page: the Reader that runs its blocks


ON_PROCESSES = {block.page for block in BLOCKS if TORCHRUN.search(block.text)}


def each_block(on_processes):
    """Return a parametrisation by the blocks of pages that have, or do not have, programs on several processes."""
    chosen = [block for block in BLOCKS if block.not_run is None and (block.page in ON_PROCESSES) == on_processes]
    return pytest.mark.parametrize("block", chosen, ids=str)


@each_block(on_processes=True)
def test_block_on_processes(block, processes, tmp_path_factory):
    """A block of a page with `torchrun` does what its page shows; all these pages share their processes."""
    type_in(block, tmp_path_factory, processes)


@each_block(on_processes=False)
def test_block(block, tmp_path_factory):
    """A block does what its page shows."""
    type_in(block, tmp_path_factory)


def type_in(block, tmp_path_factory, processes=None):
    """Run a block after all blocks above it."""
    if block.page not in READERS:
        folder = tmp_path_factory.mktemp("page")
        READERS[block.page] = Reader(folder, processes)
        if block.page.stem == "conformance":  # the page's reader is in a copy of the repository
            shutil.copytree(ROOT / "conformance", folder / "conformance")
    reader = READERS[block.page]
    if reader.failed:
        pytest.fail(f"{reader.failed}, above this one, failed", pytrace=False)
    for each in blocks(block.page)[reader.done :]:
        reader.done += 1
        try:
            if str(each) == str(block):
                reader.run(each)
                return
            with contextlib.suppress(pytest.skip.Exception):  # this test runs alone: blocks above it run first
                reader.run(each)
        except BaseException as error:
            if not isinstance(error, pytest.skip.Exception):
                reader.failed = str(each)
            raise


INSTALLS = re.compile(r"pip install|git clone")


CLUSTERS = re.compile(r"ray\.data|spark\.read|\bray\.get\b|ItemShard")


def test_what_does_not_run_installs():
    """Only blocks that change the machine or need several processes are not run.

    `.ci/run` runs the former; test_engines and test_samples test the latter.
    """
    elsewhere = [block for block in BLOCKS if INSTALLS.search(block.text) or CLUSTERS.search(block.text)]
    assert not [block for block in BLOCKS if block.not_run and block not in elsewhere]


DOTTED = re.compile(r"\b(?:torchrecmetrics|trm)((?:\.[A-Za-z_]\w*)+)")


def resolve(path):
    """Return the object that a dotted path after `torchrecmetrics` names."""
    found = trm
    for name in path.strip(".").split("."):
        if not hasattr(found, name) and hasattr(found, "__path__"):
            importlib.import_module(f"{found.__name__}.{name}")
        found = getattr(found, name)
    return found


def test_names_exist():
    """Every public name on a page exists in the package."""
    unknown = set()
    for page in PAGES:
        for path in DOTTED.findall(page.read_text(encoding="utf-8")):
            try:
                resolve(path)
            except (AttributeError, ImportError):
                unknown.add((page.name, path))
    assert not unknown


def test_public_names_are_in_the_reference():
    """Every public name has a docstring and a place in the reference."""
    reference = "".join(page.read_text(encoding="utf-8") for page in PAGES if "reference" in page.parts)
    for module in ("torchrecmetrics", *(f"torchrecmetrics.{name}" for name in ("functional", "lightning", "pyg"))):
        whole_module = f".. automodule:: {module}\n   :members:\n" in reference
        for name in importlib.import_module(module).__all__:
            listed = rf"^\.\. auto\w+:: {re.escape(f'{module}.{name}')}$|`{re.escape(f'{module}.{name}')}`"
            assert resolve(f"{module}.{name}".partition(".")[2]).__doc__, name
            assert whole_module or re.search(listed, reference, re.M), name


def test_code_on_pages_is_narrow():
    """Code on pages has at most 88 columns, which a page shows without scrolling."""
    lines = [(str(block), line) for block in BLOCKS if block.kind == "python" for line in block.text.splitlines()]
    assert not [(block, line) for block, line in lines if len(line) > 88]


def shown(text):
    """Return the blocks of a page that does not exist, with this text."""
    page = ROOT / "docs" / "none.md"
    return blocks(page, text)


class TestPages:
    """Errors on a page that the collector of blocks must notice."""

    def test_drift_is_named(self, tmp_path):
        """A block whose output has changed fails with page, line, expected and actual output."""
        (block,) = shown("# A\n\n```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
        with pytest.raises(pytest.fail.Exception, match=r"docs/none.md:8: expected\n3\n\ngot\n2"):
            Reader(tmp_path).run(block)

    def test_output_is_shown(self, tmp_path):
        (block,) = shown("```python\nprint(2)\n```\n")
        with pytest.raises(pytest.fail.Exception, match=r"docs/none.md:2: expected\n\(no output is shown\)\ngot\n2"):
            Reader(tmp_path).run(block)

    def test_scripts_fail(self, tmp_path):
        (block,) = shown("```bash\nfalse\n```\n")
        with pytest.raises(pytest.fail.Exception, match="exit status 1"):
            Reader(tmp_path).run(block)

    def test_blocks_share(self, tmp_path):
        """Blocks share a namespace and a folder; a titled block becomes a file; indented blocks are blocks too."""
        found = shown(
            """Write

```{code-block} yaml
:caption: x/y.yaml

a: 1
```

- and

    ```python
    from pathlib import Path
    text = Path("x/y.yaml").read_text()
    ```

```python
>>> text.strip()
'a: 1'
```

```bash
cat x/y.yaml
```

```text
a: 1
```
"""
        )
        assert [block.line for block in found] == [4, 12, 17, 22]
        reader = Reader(tmp_path)
        for block in found:
            reader.run(block)


DATA = ROOT.parent / "shared" / "data"


def typed_in(page, folder):
    """Return the output of a page that is run in a folder with MovieLens-100K's u.data, and its namespace."""
    shutil.copy(DATA / "ml-100k" / "u.data", folder)
    namespace = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for block in blocks(page):
            if block.kind == "python":
                exec(block.text, namespace)
    return printed.getvalue(), namespace


@pytest.mark.skipif(not DATA.exists(), reason="the data sets are not here")
def test_first_evaluation_on_movielens(tmp_path, monkeypatch):
    """With u.data in the folder, the page's code gives the numbers that the page states."""
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "start" / "first-evaluation.md"
    told = re.search(r"NDCG@10 ([\d.]+) for popularity and ([\d.]+) for", page.read_text(encoding="utf-8"))
    printed, _ = typed_in(page, tmp_path)
    assert re.findall(r"^NDCG@10  ([\d.]+) ±", printed, re.M) == list(told.groups())


@pytest.mark.skipif(not DATA.exists(), reason="the data sets are not here")
def test_comparison_on_movielens(tmp_path, monkeypatch):
    """The larger decomposition is better on MovieLens, by the numbers that the page states."""
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "how-to" / "compare.md"
    number = r"([\d.]+)"
    told = rf"by {number} NDCG@10 \(interval {number} to {number}, corrected p {number}\) for\s(\d+) users"
    _, namespace = typed_in(page, tmp_path)
    found = trm.compare({name: namespace[name] for name in ("small", "large")})["NDCG@10"]
    numbers = found.difference, found.adjusted_low, found.adjusted_high, found.adjusted_p, found.num_rows
    assert [float(each) for each in re.search(told, page.read_text(encoding="utf-8")).groups()] == [
        pytest.approx(each, abs=6e-5 if place < 3 else 6e-4) for place, each in enumerate(numbers)
    ]
