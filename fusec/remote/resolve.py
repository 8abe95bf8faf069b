"""From a key to an artifact: local store, cache service, farm, a compile here; by policy.

A fault on the way never reaches the training job. It is counted, told once, and the next place is
asked; the last is the compiler in this process. Only the policy `require` turns it into an error.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from cache.artifacts import Found
from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.errors import CacheError
from cache.local import LocalStore
from cache.memory import MemoryStore
from cache.signing import read_trusted
from cache.store import Store
from cache.tls import ClientTls
from cache.tracing import OFF, Tracing
from cache.trust import NOBODY, Trust
from fusec.errors import FusecError, OptionsError, WireError
from fusec.ir.graph import Graph
from fusec.options import Options, Target
from fusec.remote.farm import FarmClient, FarmUnavailable
from fusec.remote.jobs import FrontRecord, GraphJob
from fusec.remote.journal import Journal
from fusec.remote.notices import Notices
from fusec.remote.progress import Progress, open_progress
from fusec.remote.protocol import Priority
from fusec.remote.ticket import COMPILED_HERE, CompileLocal, Means, Ticket
from fusec.remote.tidy import tidy_beside
from fusec.remote.tiers import FrontFound, Source, Tiers
from fusec.trace import Recorder

__all__ = ["FrontFound", "Resolver", "Source", "Ticket"]


class Resolver:
    """One per process (a session); safe to share between threads.

    local: this user's store on disk. remote: the cache service, None for none. trust: whose
    artifacts of the remote are used. Warnings are given once per resolver and cause.
    compile_local: the compiler, loaded on its first use by default. priority: of jobs at the farm.
    """

    def __init__(
        self,
        local: Store,
        remote: CacheClient | None,
        options: Options,
        recorder: Recorder,
        *,
        trust: Trust = NOBODY,
        compile_local: CompileLocal | None = None,
        progress: Progress | None = None,
        journal: Journal | None = None,
        priority: Priority = Priority.WAITING,
    ) -> None:
        self._journal = journal or Journal(None)
        self._notices = Notices(recorder)
        self._tiers = Tiers(local, remote, self._notices, recorder, trust=trust)
        self._remote = remote
        self._farm = FarmClient(remote, outage_s=options.budget_s) if remote is not None else None
        self._options = options
        self._recorder = recorder
        self._means = Means(
            self._tiers,
            self._farm,
            options,
            recorder,
            self._notices,
            progress or open_progress(options.progress),
            compile_local or _default_compiler,
            self._journal,
            priority,
        )
        self._lock = threading.Lock()
        self._in_flight: dict[str, Ticket] = {}

    @classmethod
    def open(
        cls,
        options: Options,
        recorder: Recorder,
        *,
        compile_local: CompileLocal | None = None,
        priority: Priority = Priority.WAITING,
    ) -> Resolver:
        """A resolver over the store in ``options.cache_dir`` and the service at ``options.remote``.

        A directory that cannot be used is replaced by memory, and a remote without any key to
        verify what it holds is not used; both are told and counted.
        Raises OptionsError for an address or a file of tokens, keys or certificates that makes no
        sense.
        """
        local: Store
        fault: CacheError | None = None
        folder: Path | None = options.store_dir
        try:
            local = opened = LocalStore(options.store_dir)
            tidy_beside(opened, options.cache_bytes)
        except CacheError as error:
            local, fault, folder = MemoryStore(), error, None
        trust = trust_of(options)
        believes = bool(trust.keys) or trust.unsigned
        remote = None
        if options.remote:
            made = open_client(options, options.remote, recorder.tracing)
            remote = made if believes else None
        resolver = cls(
            local,
            remote,
            options,
            recorder,
            trust=trust,
            compile_local=compile_local,
            journal=Journal(folder),
            priority=priority,
        )
        if options.remote and not believes:
            resolver._notices.fault(
                "unsigned",
                "no-keys",
                f"FUSEC_REMOTE is {options.remote}, but FUSEC_TRUSTED_KEYS names no file of keys to"
                " verify its artifacts with",
                "it is not used, and graphs are compiled in this process",
            )
        if fault is not None:
            resolver._notices.fault(
                "store_full", "local-open", fault, "artifacts are kept in memory only"
            )
        return resolver

    @property
    def remote(self) -> CacheClient | None:
        """The client of the cache service; None where there is none, or nobody to believe."""
        return self._remote

    # -- looking up ---------------------------------------------------------------------------

    def lookup(self, key: str) -> Found | None:
        """The artifact of a key, kept locally when it came from afar. Never raises for a fault."""
        return self.lookup_many([key]).get(key)

    def lookup_many(self, keys: Sequence[str]) -> dict[str, Found]:
        """The artifacts that exist among `keys`; counts a hit or a miss for each key."""
        found = {key: item for key, (item, _) in self._tiers.find(keys).items()}
        self._count(keys, found)
        return found

    def lookup_front(self, key: str) -> FrontFound | None:
        """What a front key leads to; a hit only when every part is there too.

        Counts front_hits and a graph hit for each part, or front_misses.
        """
        front = self._tiers.front(key)
        if front is None:
            self._recorder.count("front_misses")
        else:
            self._recorder.count("front_hits")
            self._recorder.count("graph_hits", len(front.parts))
            self._journal.note("front", front.record.entries, "front", hit=True)
        return front

    def _count(self, keys: Iterable[str], found: Iterable[str]) -> None:
        hits = set(found)
        for key in keys:
            if key.startswith("graph/"):
                self._recorder.count("graph_hits" if key in hits else "graph_misses")
            elif key.startswith("front/"):
                self._recorder.count("front_hits" if key in hits else "front_misses")

    # -- compiling ----------------------------------------------------------------------------

    def submit(self, job: GraphJob) -> Ticket:
        """Look the graph up, hand it to the farm on a miss; returns at once.

        A graph that is in flight already gives the same ticket. Faults of the remote do not raise:
        `Ticket.result` then compiles here, or raises under the policy `require`.
        """
        with self._lock:
            ticket = self._in_flight.get(job.key)
            if ticket is not None:
                return ticket.share()
            ticket = self._in_flight[job.key] = Ticket(job, self._means, self._ended)
        if self._remote is None:
            ticket.start()
        else:
            # Beside the caller, who goes on with tracing while entries and blobs travel.
            # In a copy of this context, so that its spans belong to the graph's.
            start = partial(contextvars.copy_context().run, ticket.start)
            threading.Thread(target=start, name="fusec-ticket", daemon=True).start()
        return ticket

    def compile_again(self, job: GraphJob, error: FusecError) -> Found:
        """Compile here a graph whose stored artifact would not load.

        Drops it from the local store. Raises PolicyError, CompilerError.
        """
        self._notices.fault("corrupt", "unloadable", error, COMPILED_HERE)
        self._tiers.drop(job.key)
        return self._means.compile_here(job, error)

    def newer(self, versions: Mapping[str, str]) -> dict[str, Found]:
        """What the service has by now in the place of artifacts of these versions, by key.

        Nothing where there is no service. Never raises for a fault of it.
        """
        return self._tiers.newer(versions)

    def publish_front(self, record: FrontRecord) -> None:
        """Keep a front record locally and ask the farm to publish it. Never raises for a fault."""
        self._journal.note("front", record.entries, "front", hit=False)
        try:
            self._tiers.keep_front(record)
        except WireError as error:
            self._notices.fault("front_ineligible", "front-size", error, "it is not kept")
            return
        if self._farm is None or self._options.policy == "off":
            return
        try:
            with self._recorder.span("submit"):
                self._farm.publish_front(record)
        except FarmUnavailable as error:
            self._means.farm_fault(error, "other processes will not find this front key")

    def close(self) -> None:
        """Take back every graph in flight; write what the local store is still to be given."""
        with self._lock:
            tickets = list(self._in_flight.values())
        for ticket in tickets:
            ticket.cancel()
        self._tiers.flush()
        if self._remote is not None:
            self._remote.close()

    def _ended(self, ticket: Ticket) -> None:
        with self._lock:
            if self._in_flight.get(ticket.job.key) is ticket:
                del self._in_flight[ticket.job.key]


def _default_compiler(
    graph: Graph, target: Target, options: Options, store: Store, *, recorder: Recorder
) -> Found:
    # The compiler is heavy: a warm process must not load it.
    from fusec.pipeline import compile_local

    return compile_local(graph, target, options, store, recorder=recorder)


def trust_of(options: Options) -> Trust:
    """Whose artifacts of the remote are used. Raises OptionsError for an unreadable key file."""
    if options.trusted_keys is None:
        # Without a key a seal says nothing; who takes unsigned artifacts takes these as well.
        return Trust(
            namespace=options.namespace, unsigned=options.unsigned, any_signer=options.unsigned
        )
    try:
        keys = read_trusted(options.trusted_keys)
    except CacheError as error:
        raise OptionsError(error.message, where="FUSEC_TRUSTED_KEYS", hint=error.hint) from error
    return Trust(keys, options.namespace, unsigned=options.unsigned)


def token_of(options: Options) -> str | None:
    """The bearer token, from the option or its file. Raises OptionsError for an unreadable file."""
    if options.token is not None or options.token_file is None:
        return options.token
    try:
        return options.token_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise OptionsError(
            f"the token file cannot be read: {error}",
            where=str(options.token_file),
            hint="check FUSEC_TOKEN_FILE",
        ) from error


def tls_of(options: Options) -> ClientTls:
    """The certificates of a client, by the options."""
    return ClientTls(options.tls_ca, options.tls_cert, options.tls_key)


def open_client(options: Options, url: str, tracing: Tracing = OFF) -> CacheClient:
    """The client of a service, by the options. Raises OptionsError."""
    token = token_of(options)
    try:
        return CacheClient(
            url,
            token=token,
            namespace=options.namespace,
            tls=tls_of(options),
            budget=DelayBudget(options.budget_s),
            tracing=tracing,
        )
    except CacheError as error:
        raise OptionsError(error.message, where="FUSEC_REMOTE", hint=error.hint) from error
