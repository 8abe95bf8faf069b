"""Values that the chart's schema allows, made at random from the schema itself."""

import json
import random
from collections.abc import Callable
from typing import Any, Final

import rstr

from tests.deploy.tools import CHART

Node = dict[str, Any]
SCHEMA: Final[Node] = json.loads((CHART / "values.schema.json").read_text())
OFTEN: Final = 0.5
"""How likely a key is given that may be left out."""


class Values:
    """`any()` makes values that the schema takes; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._texts = rstr.Rstr(self._random)
        self._kinds: dict[str, Callable[[Node], Any]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
            "boolean": lambda node: self._random.random() < 0.5,
        }

    def any(self) -> Node:
        made: Node = self._of(SCHEMA)
        return made

    def _of(self, node: Node) -> Any:
        if "$ref" in node:
            return self._of(SCHEMA["definitions"][node["$ref"].rpartition("/")[2]])
        if "enum" in node:
            return self._random.choice(node["enum"])
        return self._kinds[node["type"]](node)

    def _object(self, node: Node) -> Node:
        free = node.get("additionalProperties")
        if isinstance(free, dict):
            names = [self._of(node["propertyNames"]) for _ in range(self._random.randrange(3))]
            return {name: self._of(free) for name in (*names, *node.get("required", ()))}
        needed = node.get("required", ())
        return {
            name: self._of(item)
            for name, item in node.get("properties", {}).items()
            if name in needed or self._random.random() < OFTEN
        }

    def _array(self, node: Node) -> list[Any]:
        made: list[Any] = []
        for _ in range(self._random.randrange(3)):
            item = self._of(node["items"])
            if item not in made or not node.get("uniqueItems"):
                made.append(item)
        return made

    def _string(self, node: Node) -> str:
        longest = node.get("maxLength", 1000)
        while True:
            text = self._texts.xeger(node.get("pattern", r"[ -~äß€]{0,20}"))
            if len(text) <= longest and text != node.get("not", {}).get("const"):
                return text

    def _integer(self, node: Node) -> int:
        low, high = node["minimum"], node["maximum"]
        near = min(high, low + 20)
        return self._random.choice([low, high, self._random.randint(low, near)])

    def _number(self, node: Node) -> float:
        low = node.get("minimum", node.get("exclusiveMinimum", 0) + 0.001)
        return self._random.choice([low, node["maximum"], self._random.uniform(low, 1000.0)])
