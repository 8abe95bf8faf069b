"""The load tests themselves: that they see what they should, and that a small one holds."""

from __future__ import annotations

import math
import socket
import threading
from contextlib import suppress

import pytest

from loadtest import __main__ as command
from loadtest.balancer import balancer
from loadtest.models import model
from loadtest.plan import Plan, RankModel
from loadtest.report import write_report
from loadtest.samples import RankTimes, Request, Samples, percentile
from loadtest.scenario import Objective, Outcome, Scale, no_errors
from loadtest.scenarios import herd
from loadtest.servers import stand


def test_a_percentile_is_a_value_that_was_seen():
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(range(1, 101), 0.99) == 99
    assert math.isnan(percentile([], 0.5))


def test_what_was_not_measured_is_not_kept():
    assert Objective("a", 1.0, 1.0).kept
    assert not Objective("a", 1.1, 1.0).kept
    assert not Objective("a", math.nan, 1.0).kept


def test_errors_of_requests_and_of_ranks_count_and_are_named():
    seen = Samples((Request("t", "lookup", 0.0, 0.1, "503"),), (RankTimes("t", 0.0, 1.0, "gone"),))
    found = no_errors(seen)
    assert (found.value, found.kept) == (2, False)
    assert "503" in found.what
    assert "gone" in found.what


def test_a_plan_comes_back_from_its_file(tmp_path):
    made = Plan("http://h", "t", "a", "a", (RankModel(("k",), ("f",)),), 3, 1.0, 2.0, in_turn=True)
    made.write(tmp_path / "plan")
    assert Plan.read(tmp_path / "plan") == made


def test_models_differ_from_one_another_and_not_from_themselves():
    assert model(3).keys() == model(3).keys()
    assert len({job.key for number in range(4) for job in model(number).jobs}) == 8


def test_a_report_shows_what_was_not_kept(tmp_path):
    ranks = tuple(RankTimes("t", float(n), n + 0.5, "") for n in range(5))
    requests = (Request("t", "lookup", 1.0, 0.01, ""),)
    parts = {"cold": Samples(requests, ranks), "clients": Samples((), ranks)}
    objectives = (Objective("y < z", 2, 1), Objective("unseen", math.nan, 1))
    away = ((1.0, 2.0), (3.0, 4.0))
    made = Outcome("x", "about it", objectives, {"figure": "3 <s>"}, parts, away)
    text = write_report(tmp_path, [made], "a machine").read_text()
    assert "not measured" in text
    assert "remote away" in text
    assert "not kept" in text
    assert "y &lt; z" in text
    assert "3 &lt;s&gt;" in text
    assert text.count("<svg") == 1


def test_a_balancer_passes_on_changes_its_backend_and_cuts():
    def greet(listener, word):
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            ends.append(end)
            end.sendall(word)

    ends = []

    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        for listener, word in ((first, b"1"), (second, b"2")):
            threading.Thread(target=greet, args=(listener, word), daemon=True).start()
        with balancer(first.getsockname()[1]) as front:
            address = ("127.0.0.1", int(front.url.rpartition(":")[2]))
            held = socket.create_connection(address, 30)
            assert held.recv(1) == b"1"
            front.direct(second.getsockname()[1])
            with socket.create_connection(address, 30) as other:
                assert other.recv(1) == b"2"
            front.direct(None)
            with held, suppress(ConnectionResetError):
                assert held.recv(1) == b""
        for end in ends:
            end.close()
        for listener in (first, second):
            listener.shutdown(socket.SHUT_RDWR)


def test_the_command_names_the_scenarios_it_has(capsys):
    with pytest.raises(SystemExit):
        command.main(["nonesuch"])
    assert "herd, starts, tenants" in capsys.readouterr().err


def test_a_herd_of_ranks_is_one_compile_a_key_and_one_read_of_s3_an_object(tmp_path):
    with stand(tmp_path, workers=2) as servers:
        outcome = herd(servers, Scale(ranks=40, seconds=10))
    assert [each.what for each in outcome.objectives if not each.kept] == []
    assert len(outcome.parts["cold"].ranks) == 40
