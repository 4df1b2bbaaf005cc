"""Find the code blocks of README and docs, run them, and compare their output with the page.

The first word of a fence says what the block is:

- ``python`` with prompts is a doctest; without prompts, a program, whose output is in the ``text`` block after it;
- ``bash`` is a script, whose output is in the ``text`` block after it; the command ``torchrecmetrics``, and programs
  that ``torchrun`` starts, run in processes that are there already;
- ``{code-block} lexer`` with ``:caption: name`` is a file of that name, written into the page's folder and not run;
- other words in braces are directives of the site.

Blocks of a page share a namespace and an empty folder, in their order. An HTML comment before a block says what it
needs (``<!-- needs: mlflow -->``) or why it cannot run (``<!-- not run: installs -->``); both are skips with a reason.
"""

import contextlib
import doctest
import importlib.util
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import pytest
import torch.distributed as dist

from torchrecmetrics import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>```+) *(?P<info>[^`\n]*)\n(?P<text>.*?)^(?P=indent)(?P=ticks) *$", re.M | re.S
)
COMMENT = re.compile(r"<!-- (?P<kind>needs|not run): (?P<what>[^\n]*?) -->\s*\Z")
TORCHRUN = re.compile(r"^torchrun --standalone --nproc_per_node (\d+) (\S+)$", re.M)
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@dataclass
class Block:
    """One fence of a page, and the output that the page shows after it."""

    page: Path
    line: int  # number of the first line of text
    kind: str
    text: str
    title: str | None = None
    output: str | None = None
    output_line: int = 0
    needs: tuple[str, ...] = ()
    not_run: str | None = None

    def __str__(self):
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def blocks(page, text=None):
    """Return the blocks of a page in their order; outputs belong to the blocks before them."""
    text = page.read_text(encoding="utf-8") if text is None else text
    found, end = [], 0
    for match in FENCE.finditer(text):
        info = match["info"].strip()
        kind, _, rest = info.partition(" ")
        before = text[end : match.start()]
        line = text.count("\n", 0, match.start()) + 2
        body = textwrap.dedent(match["text"])
        title = None
        if kind == "{code-block}":
            title = re.match(r":caption: (\S+)\n\n", body)
            if title is None:
                raise ValueError(f"{page.name}:{line}: a code-block has a caption, the name of its file")
            kind, body = rest, body[title.end() :]
        elif kind.startswith("{"):
            continue
        if kind == "text" and title is None and not COMMENT.search(before):
            if not found or before.strip() or found[-1].kind not in ("python", "bash") or found[-1].output is not None:
                raise ValueError(f"{page.name}:{line}: output of no block; say what it is with a comment before it")
            found[-1].output, found[-1].output_line = body, line
        else:
            comment = COMMENT.search(before)
            said = {comment["kind"]: comment["what"]} if comment else {}
            needs = tuple(said.get("needs", "").replace(",", " ").split())
            found.append(Block(page, line, kind, body, title and title[1], needs=needs, not_run=said.get("not run")))
        end = match.end()
    return found


def run_program(rank, world_size, path):
    """Return what a program prints in this process of a group that is there already."""
    with mock.patch.object(dist, "init_process_group"), contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


@dataclass
class Reader:
    """A reader who types in a page from its top; `processes` run what `torchrun` starts."""

    folder: Path
    processes: object = None
    namespace: dict = field(default_factory=lambda: {"__name__": "__main__"})
    done: int = 0  # number of blocks that were run or skipped
    failed: str | None = None

    def run(self, block):
        """Run, write or skip a block; fail with the page, the line, and the expected and actual output."""
        if block.not_run is not None:
            pytest.skip(f"{block}: not run: {block.not_run}")
        for name in block.needs:
            if importlib.util.find_spec(name.partition(".")[0]) is None:
                pytest.skip(f"{block}: needs {name}, which is not installed")
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            if block.title is not None:
                Path(block.title).parent.mkdir(parents=True, exist_ok=True)
                Path(block.title).write_text(block.text, encoding="utf-8")
            elif block.kind == "python":
                (self._doctest if re.search(r"^ *>>> ", block.text, re.M) else self._program)(block)
            elif block.kind == "bash" and block.text.startswith("torchrecmetrics "):
                self._command(block)
            elif block.kind == "bash" and TORCHRUN.search(block.text):
                number, program = TORCHRUN.search(block.text).groups()
                printed = self.processes.run(run_program, int(number), self.folder / program)
                self._compare(block, "".join(printed))
            elif block.kind == "bash":
                self._script(block)
            else:
                pytest.fail(f"{block}: a block of {block.kind!r} is nothing that runs; give it a caption, or say why")
        finally:
            os.chdir(before)

    def _doctest(self, block):
        if block.output is not None:
            pytest.fail(f"{block}: prompts show their output themselves")
        test = doctest.DocTestParser().get_doctest(block.text, {}, str(block), str(block.page), block.line - 1)
        test.globs = self.namespace
        report = io.StringIO()
        result = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.write, clear_globs=False)
        if result.failed:
            pytest.fail(report.getvalue(), pytrace=False)

    def _program(self, block):
        code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, self.namespace)
        self._compare(block, printed.getvalue())

    def _command(self, block):
        command, _, otherwise = block.text.replace("\\\n", "").partition("||")
        if otherwise.strip() not in ("", 'echo "exit status $?"'):
            pytest.fail(f"{block}: a command may only be followed by || echo")
        with (
            mock.patch.dict(os.environ, COLUMNS="86"),
            contextlib.redirect_stdout(io.StringIO()) as printed,
            contextlib.redirect_stderr(printed),
        ):
            status = cli.main(shlex.split(command)[1:])
        self._compare(block, printed.getvalue() + f"exit status {status}\n" * bool(status))

    def _script(self, block):
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = os.environ | {"PATH": path, "COLUMNS": "86", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-e", "-c", block.text], capture_output=True, text=True, timeout=240, env=environment
        )
        if done.returncode:
            pytest.fail(f"{block}: exit status {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False)
        self._compare(block, done.stdout)

    def _compare(self, block, got):
        expected = block.output or ""
        if not doctest.OutputChecker().check_output(expected, got, FLAGS if expected else 0):
            at = replace(block, line=block.output_line or block.line)
            pytest.fail(f"{at}: expected\n{expected or '(no output is shown)'}\ngot\n{got}", pytrace=False)
