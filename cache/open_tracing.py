"""From a setting to a `Tracing`."""

from __future__ import annotations

from cache.errors import ConfigError
from cache.tracing import OFF, Tracing


def open_tracing(setting: str, service: str, *, parent: str = "", root: str = "") -> Tracing:
    """What a setting asks for; `OFF` for an empty one.

    service: the name of this process in the traces. root: a span to begin with, below `parent` (a
    traceparent) if that is given; spans without an open one around them belong below it. Raises
    ConfigError for an unknown setting, and where OpenTelemetry is not installed.
    """
    if not setting:
        return OFF
    if setting != "otlp" and not setting.startswith("file:/"):
        raise ConfigError(f"tracing {setting!r:.60} is neither otlp nor file:/path")
    try:
        # With the extra only, and loaded by those alone who use it.
        from cache.otel import OpenTelemetry
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tracing needs OpenTelemetry ({error.name} is missing)",
            hint="pip install 'fusec[tracing]'",
        ) from error
    return OpenTelemetry(setting, service, parent=parent, root=root)
