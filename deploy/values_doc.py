"""Writes the tables of docs/kubernetes.md from the chart's values and their schema: `make docs`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "deploy" / "helm" / "fusec"
PATH: Final = ROOT / "docs" / "kubernetes.md"
_KEY: Final = re.compile(r"( *)([A-Za-z0-9]+):")
_SETTINGS: Final = (("cache", "FUSEC_CACHE_"), ("farm.gateway", "FUSEC_FARM_"))


def written(text: str) -> str:
    """docs/kubernetes.md with its tables anew; they stand between markers."""
    made = {"values": _values(), "settings": _settings()}
    for name, table in made.items():
        pattern = rf"(<!-- {name}: made by `make docs` -->\n).*?(<!-- end of {name} -->)"
        text, count = re.subn(
            pattern, lambda match, table=table: match[1] + table + match[2], text, flags=re.S
        )
        if count != 1:
            raise ValueError(f"{PATH} has {count} places for {name}")
    return text


def _values() -> str:
    text = (CHART / "values.yaml").read_text()
    values = yaml.safe_load(text)
    rows = ["| value | default | what it is |", "|---|---|---|"]
    for path, comment in _commented(text):
        found = values
        for name in path:
            found = found[name]
        rows.append(f"| `{'.'.join(path)}` | `{json.dumps(found)}` | {comment} |")
    return "\n".join(rows) + "\n"


def _commented(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The values that have a comment of `# --`, by path, with the comment as one line."""
    path: list[str] = []
    comment: list[str] | None = None
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# -- "):
            comment = [stripped.removeprefix("# -- ")]
        elif stripped.startswith("#") and comment is not None:
            comment.append(stripped.removeprefix("#").strip())
        elif match := _KEY.match(line):
            path = [*path[: len(match[1]) // 2], match[2]]
            if comment is not None:
                yield tuple(path), " ".join(comment).replace("|", "\\|")
            comment = None
        else:
            comment = None


def _settings() -> str:
    rows = ["| setting | variable | what it is |", "|---|---|---|"]
    schema: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    for part, prefix in _SETTINGS:
        node = schema
        for name in part.split("."):
            node = node["properties"][name]
        for name, item in node["properties"]["settings"]["properties"].items():
            text = item["description"].replace("|", "\\|")
            rows.append(f"| `{part}.settings.{name}` | `{prefix}{name.upper()}` | {text} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PATH.write_text(written(PATH.read_text()))
