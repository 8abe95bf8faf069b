"""Sign what stands in a store anew, so that an old key can leave the clients' files before all that
it has signed is gone."""

from __future__ import annotations

from dataclasses import dataclass

from cache import key as keys
from cache.artifacts import open_entry
from cache.digest import digest
from cache.errors import CacheError
from cache.gc import Collectable
from cache.seal import Signer, split
from cache.signing import SigningKey
from cache.trust import Trust


@dataclass(frozen=True)
class Resigned:
    """Entries that bear the new signature now, those that bore it before, and those left as they
    are, with the reason."""

    signed: int
    already: int
    left_out: tuple[str, ...] = ()


def resign(store: Collectable, trust: Trust, key: SigningKey) -> Resigned:
    """Sign every entry that `trust` believes with `key`, in the name of the same compiler.

    An entry that changes meanwhile is left as it is: whoever wrote it has signed it. Clients go on
    reading beside it: the manifest and its blobs stay. Raises what the store raises.
    """
    signed = already = 0
    left_out: list[str] = []
    for item in list(store.list_entries()):
        data = None if keys.is_internal(item.name) else store.peek_entry(item.name)
        if data is None:
            continue
        try:
            _, seal = open_entry(item.name, data, trust)
            body = split(data)[1]
        except CacheError as error:
            left_out.append(f"{item.name}: {error.message}")
            continue
        if seal is None:
            left_out.append(f"{item.name}: nobody has signed it")
        elif seal.signer == key.public.signer:
            already += 1
        else:
            made = Signer(key, seal.compiler, trust.namespace).seal(item.name, body).wrap(body)
            if store.swap_entry(item.name, digest(data), made):
                signed += 1
            else:
                left_out.append(f"{item.name}: it was changed meanwhile")
    return Resigned(signed, already, tuple(left_out))
