"""The load that the tests share: it takes three processes that import torch."""

from collections.abc import Iterator

import pytest

from tests.observability.load import Load, real_load


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """A cold and a warm start, scraped and traced."""
    with real_load(tmp_path_factory.mktemp("load"), starts=2) as made:
        yield made
