"""Fixtures of the client's tests."""

from pathlib import Path

import pytest

from tests.farm.clients import client
from tests.farm.tiny_stages import TinyStages

__all__ = ["client", "stages"]


@pytest.fixture
def stages(tmp_path: Path) -> TinyStages:
    """A compiler for farm and client that keeps a list of what it did."""
    return TinyStages(str(tmp_path))
