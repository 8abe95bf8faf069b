"""What enters a key is decided on purpose: an option is listed here, or it is not in a key."""

from dataclasses import fields

from fusec.options import Options, Target

IN_THE_KEY = {"strict_rounding", "fusion", "mode"}


def test_options_that_enter_the_key():
    assert set(Options.from_env({}).key_entries()) == IN_THE_KEY


def test_the_whole_target_is_in_the_key():
    target = Target("cpu", "x86-64-v3")
    assert set(target.to_wire()) == {field.name for field in fields(Target)}


def test_every_option_says_what_it_is_for():
    for option in fields(Options):
        assert option.metadata["help"]
        assert isinstance(option.metadata["key"], bool)


def test_secrets_are_in_no_representation():
    assert "secret-token" not in repr(Options.from_env({"FUSEC_TOKEN": "secret-token"}))
