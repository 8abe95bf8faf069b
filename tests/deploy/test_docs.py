"""docs/kubernetes.md: its tables are those of the chart, and what it names is there. Settings."""

import re

from deploy import values_doc
from farm.config import FarmConfig
from tests.deploy.tools import CHART, ROOT


def test_the_tables_are_up_to_date():
    text = values_doc.PATH.read_text()
    assert text == values_doc.written(text), "run `make docs`"


def test_every_value_with_a_comment_is_in_the_table():
    text = values_doc.PATH.read_text()
    comments = (CHART / "values.yaml").read_text().count("# -- ")
    assert len(re.findall(r"(?m)^\| `[\w.]+` \| `", text)) >= comments
    assert '| `cache.tls.secret` | `""` |' in text


def test_files_that_it_names_are_there():
    text = values_doc.PATH.read_text()
    for name in set(re.findall(r"\b(?:deploy|k8s)/[\w./-]+", text)):
        assert (ROOT / name).exists(), name
    for name in set(re.findall(r"values-[\w-]+\.yaml", text)):
        assert (CHART / name).exists(), name


def test_every_setting_of_the_farm_is_in_its_pages():
    text = "".join(
        (ROOT / "docs" / name).read_text() for name in ("farm.md", "tracing.md", "trust.md")
    )
    names = map(str.upper, FarmConfig.__dataclass_fields__)
    assert [n for n in names if not re.search(rf"FUSEC_FARM_{n}\b|`_?{n}[`=]", text)] == []
