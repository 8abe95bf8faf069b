"""Stores that are older than they are: a test need not wait until S3's clock, of whole seconds, has
gone on."""

import os
import time
from datetime import timedelta

from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from cache.local import LocalStore
from cache.s3 import S3Store

Aged = LocalStore | S3Store


def age(store: Aged, seconds: float) -> None:
    """What is in the store now was written, and used, so much earlier.

    A server that is no moto, in a process of its own, is waited for.
    """
    if isinstance(store, LocalStore):
        for part in ("blobs", "entries", "records"):
            for path in (store.root / "v1" / part).rglob("*"):
                if path.is_file():
                    then = path.stat().st_mtime - seconds
                    os.utime(path, (then, then))
        return
    if not _age_moto(store, seconds):
        time.sleep(seconds)


def _age_moto(store: S3Store, seconds: float) -> bool:
    bucket = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets.get(store.bucket.name)
    found = False
    for name, item in list(bucket.keys.items()) if bucket is not None else []:
        if name.startswith(store.bucket.prefix):
            item.last_modified -= timedelta(seconds=seconds)
            found = True
    return found
