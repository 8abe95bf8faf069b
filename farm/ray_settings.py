"""Settings of a Ray cluster that the farm counts on, for whoever starts its head.

Ray notices a node that is gone by its own heartbeat, after half a minute as it comes; jobs that had
tasks there would wait as long. With these it takes about five seconds. They are set at the head
alone, as `_system_config` or as environment variables (`environment`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HEAD_SETTINGS: Final[Mapping[str, int]] = {
    "health_check_initial_delay_ms": 3000,  # a node that starts has this long before it is asked
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}


def environment() -> dict[str, str]:
    """The settings as the environment of `ray start --head`."""
    return {f"RAY_{name}": str(value) for name, value in HEAD_SETTINGS.items()}
