"""For jobs that stay on `torch.compile`'s default backend: Inductor's own caches in our service.

    import fusec.inductor
    fusec.inductor.share()          # before the first compile

Inductor keeps FX graphs, AOTAutograd's results and, on a GPU, how the kernels of a graph were tuned
through a seam of torch's that is made for a Redis; this puts the cache service in its place. (Not
the records of single kernels: Inductor reads them in its compile workers, where the seam is not.)

What it keeps is opaque here and holds Inductor's own pickles: to load one is to run its writer's
code. So this is off unless a program asks for it, lies in a namespace of its own, and takes only
what one of `FUSEC_TRUSTED_KEYS` has signed.
Here the writers are the jobs: who holds the key in `FUSEC_INDUCTOR_KEY` can run code in every job
that trusts it. Give it to one prewarming job rather than to all. Without it a job only reads.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from cache import key as keys
from cache.artifacts import publish
from cache.client import CacheClient
from cache.counters import Counters
from cache.errors import CacheError
from cache.manifest import Manifest
from cache.seal import Signer
from cache.signing import SigningKey
from cache.store import Store
from cache.trust import Trust
from fusec.artifact.fingerprint import torch_version
from fusec.errors import OptionsError
from fusec.options import Options
from fusec.remote.resolve import open_client, trust_of

if TYPE_CHECKING:
    from torch._inductor.remote_cache import RemoteCacheBackend

log = logging.getLogger("fusec.inductor")

KIND: Final = "inductor"
BLOB: Final = "value"
MAX_VALUE: Final = 64 << 20
"""Largest value kept, in bytes; Inductor compiles again what is larger."""
_CACHES: Final = (
    "RemoteFxGraphCache",
    "RemoteAOTAutogradCache",
    "RemoteBundledAutotuneCache",
)


class Shelf:
    """Inductor's keys and values in a store. Never raises: a fault is a miss and is counted.

    signer: signs what is put; None puts nothing. `counters` counts hits, misses, puts, errors.
    """

    def __init__(self, store: CacheClient, trust: Trust, signer: Signer | None) -> None:
        self.counters = Counters()
        self._store = store
        self._trust = trust
        self._signer = signer

    def get(self, name: str) -> bytes | None:
        """The value under Inductor's key, if somebody that is trusted has signed it."""
        key = key_of(name)
        try:
            found = self._store.lookup_many([key], trust=self._trust).get(key)
        except CacheError as error:
            self._fault(error)
            return None
        value = None if found is None else found.blobs.get(BLOB)
        self.counters.add("misses" if value is None else "hits")
        return value

    def put(self, name: str, value: bytes) -> None:
        """Keep a value; one that stands already stays."""
        if self._signer is None:
            return
        if len(value) > MAX_VALUE:
            self.counters.add("too_large")
            return
        key = key_of(name)
        manifest = Manifest.of(KIND, {BLOB: value})
        seal = self._signer.seal(key, manifest.encode())
        store: Store = self._store
        try:
            publish(store, key, manifest, {BLOB: value}, seal=seal, trust=self._trust)
        except CacheError as error:
            self._fault(error)
        else:
            self.counters.add("puts")

    def _fault(self, error: CacheError) -> None:
        self.counters.add("errors")
        log.debug("Inductor's cache: %s", error)


def key_of(name: str) -> str:
    """The store's key for one of Inductor's, which are of any form."""
    return keys.make(KIND, hashlib.sha256(name.encode()).hexdigest())


@dataclass(frozen=True, slots=True)
class Sharing:
    """Inductor's caches lie in the service until `stop`."""

    shelf: Shelf
    _undo: Callable[[], None]

    def stop(self) -> None:
        """As it was before."""
        self._undo()


def share(options: Options | None = None) -> Sharing:
    """Keep Inductor's caches in the service that the options name, from the next compile on.

    Raises OptionsError without a remote, without keys to trust, or for a key file that is none.
    """
    chosen = options or Options.from_env()
    if not chosen.remote:
        raise OptionsError("there is no remote to share with", hint="set FUSEC_REMOTE")
    chosen = replace(chosen, namespace=chosen.inductor_namespace)
    trust = trust_of(chosen)
    signer = None
    if chosen.inductor_key is not None:
        try:
            key = SigningKey.read(chosen.inductor_key)
        except CacheError as error:
            raise OptionsError(
                error.message, where="FUSEC_INDUCTOR_KEY", hint=error.hint
            ) from error
        signer = Signer(key, f"torch-{torch_version()}", chosen.namespace)
        trust = replace(trust, keys=(*trust.keys, key.public))
    if not trust.keys:
        # FUSEC_UNSIGNED is no way round it: these are pickles.
        raise OptionsError(
            "no keys to verify Inductor's artifacts with", hint="set FUSEC_TRUSTED_KEYS"
        )
    client = open_client(chosen, str(chosen.remote))
    shelf = Shelf(client, replace(trust, unsigned=False, any_signer=False), signer)
    undo = _install(shelf)

    def stop() -> None:
        undo()
        client.close()

    return Sharing(shelf, stop)


def _install(shelf: Shelf) -> Callable[[], None]:
    """Put the shelf in the place of Redis; gives what takes it out again."""
    # torch takes seconds to load, and is loaded already where this is called from.
    import torch
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config
    from torch._inductor import remote_cache

    class Backend(remote_cache.RemoteCacheBackend[bytes]):
        def _get(self, key: str) -> bytes | None:
            return shelf.get(key)

        def _put(self, key: str, data: bytes) -> None:
            shelf.put(key, data)

    def backend() -> RemoteCacheBackend[Any]:
        return Backend()

    settings: list[tuple[Any, str]] = [
        (inductor_config, "fx_graph_remote_cache"),
        (functorch_config, "enable_remote_autograd_cache"),
    ]
    if torch.cuda.is_available():
        # Without a GPU there is nothing to tune, and Inductor fails on the attempt to keep it.
        settings.append((inductor_config, "bundled_autotune_remote_cache"))
    caches = [getattr(remote_cache, name) for name in _CACHES if hasattr(remote_cache, name)]
    before = [(config, name, getattr(config, name)) for config, name in settings]
    kept = [(cache, cache.backend_override_cls) for cache in caches]
    for config, name in settings:
        setattr(config, name, True)
    for cache in caches:
        cache.backend_override_cls = backend

    def undo() -> None:
        for config, name, value in before:
            setattr(config, name, value)
        for cache, override in kept:
            cache.backend_override_cls = override

    return undo
