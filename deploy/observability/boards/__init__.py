"""The dashboards, each a module: what its panels ask, and when an answer may be empty."""

from __future__ import annotations

from typing import Final

from deploy.observability.boards.cache import SERVICE
from deploy.observability.boards.clients import CLIENTS
from deploy.observability.boards.farm import FARM

BOARDS: Final = (SERVICE, FARM, CLIENTS)
