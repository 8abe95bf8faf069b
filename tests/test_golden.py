"""The golden-file fixture itself."""

import pytest

from tests.conftest import GOLDEN, Golden


def test_equal_text_passes_and_a_difference_shows_a_diff(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.conftest.GOLDEN", tmp_path)
    Golden(update=True)("part/x.txt", "one\ntwo")
    assert (tmp_path / "part/x.txt").read_text() == "one\ntwo\n"
    Golden(update=False)("part/x.txt", "one\ntwo\n")
    with pytest.raises(pytest.fail.Exception, match=r"-two\n\+three"):
        Golden(update=False)("part/x.txt", "one\nthree\n")


def test_a_missing_file_fails(golden):
    if golden.update:
        pytest.skip("would write the file")
    with pytest.raises(pytest.fail.Exception, match="no golden file"):
        golden("no/such.txt", "text")


@pytest.mark.parametrize("name", ["../x.txt", "/x.txt", "a//b"])
def test_names_stay_inside_the_folder(golden, name):
    with pytest.raises(ValueError, match="golden"):
        golden(name, "text")
    assert GOLDEN.name == "golden"
