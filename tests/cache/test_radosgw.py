"""A service over Ceph's gateway, whose If-Match is not S3's: what it says, and what goes on."""

import pytest

from cache.__main__ import main
from cache.artifacts import lookup, publish
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.embedded import serve_in_thread
from tests.cache.conftest import s3_store
from tests.cache.samples import BLOBS, key, manifest

pytestmark = [pytest.mark.s3, pytest.mark.extended]


def test_the_check_says_what_it_gets_wrong_and_artifacts_are_kept(radosgw, capsys):
    with (
        s3_store(radosgw.endpoint, radosgw.access_key, radosgw.secret_key) as store,
        serve_in_thread(ServiceConfig(port=0), store=store) as running,
        CacheClient(running.url, budget=DelayBudget(60.0)) as client,
    ):
        publish(client, key(), manifest(), BLOBS)
        assert lookup(client, key()).blobs == BLOBS
        assert main(["check", running.url]) == 1
    out, err = capsys.readouterr()
    assert "bytes put in" in out
    assert "If-Match" in err
    assert "FUSEC_FARM_LEASE_S=0" in err
