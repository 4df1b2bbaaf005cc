#!/usr/bin/env python3
"""Make a virtual environment that sees this one's PyTorch, and nothing else of it: python .ci/link_torch.py FOLDER."""

import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def with_requirements(name, seen):
    """Add a distribution, and those that it needs here without extras, to `seen`."""
    distribution = metadata.distribution(name)
    if distribution.name not in seen:
        seen[distribution.name] = distribution
        for requirement in map(Requirement, distribution.requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                with_requirements(requirement.name, seen)
    return seen


folder = Path(sys.argv[1])
venv.create(folder, with_pip=True)
links = folder / "torch"
links.mkdir()
installed = Path(sysconfig.get_path("purelib"))
for distribution in with_requirements("torch", {}).values():
    for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
        (links / top).symlink_to(installed / top)
(packages,) = folder.glob("lib/python*/site-packages")
(packages / "torch.pth").write_text(f"{links}\n")
