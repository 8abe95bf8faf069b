"""Writes what the cache image installs: the client's needs less torch, and the service's extra.

Run as `python deploy/docker/requirements.py` after a change of pyproject.toml.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PATH: Final = Path(__file__).parent / "cache-requirements.txt"
NOT_IMPORTED: Final = frozenset({"torch", "numpy", "rich"})
"""What the distribution needs and `python -m cache` does not."""
EXTRAS: Final = ("cache", "tracing")
_HEAD: Final = """\
# Made by deploy/docker/requirements.py from pyproject.toml; do not edit.
"""


def text(pyproject: str) -> str:
    """The file for a pyproject.toml: one requirement a line, sorted."""
    project = tomllib.loads(pyproject)["project"]
    wanted = list(project["dependencies"])
    for extra in EXTRAS:
        wanted += project["optional-dependencies"][extra]
    kept = sorted({item for item in wanted if _name(item) not in NOT_IMPORTED})
    return _HEAD + "".join(f"{item}\n" for item in kept)


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()


if __name__ == "__main__":
    PATH.write_text(text((ROOT / "pyproject.toml").read_text()))
