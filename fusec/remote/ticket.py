"""One graph on its way from the stores, the farm or the compiler of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeGuard

from cache.artifacts import Found
from cache.store import Store
from fusec.errors import CompilerError, FarmFailed, FusecError, PolicyError, RemoteError, WireError
from fusec.ir.graph import Graph
from fusec.options import Options, Target
from fusec.remote.farm import Cause, FarmClient, FarmUnavailable
from fusec.remote.jobs import GraphJob
from fusec.remote.journal import Journal
from fusec.remote.notices import UNREACHABLE, Notices
from fusec.remote.progress import Progress
from fusec.remote.protocol import FarmJob, JobStatus, Priority
from fusec.remote.tiers import Source, Tiers
from fusec.trace import Recorder

WRONG: Final = "verification"  # the farm's kind of failure for an artifact that is wrong
COMPILED_HERE: Final = "graphs are compiled in this process"


class CompileLocal(Protocol):
    """`fusec.pipeline.compile_local`: compiles, keeps the artifact in `store`, gives it back."""

    def __call__(
        self, graph: Graph, target: Target, options: Options, store: Store, *, recorder: Recorder
    ) -> Found: ...


@dataclass(frozen=True, slots=True)
class Means:
    """What a ticket works with; the same for all tickets of a resolver. ``farm`` None is none;
    ``priority`` is that of jobs at it."""

    tiers: Tiers
    farm: FarmClient | None
    options: Options
    recorder: Recorder
    notices: Notices
    progress: Progress
    compile_local: CompileLocal
    journal: Journal
    priority: Priority = Priority.WAITING

    def compile_here(self, job: GraphJob, reason: FusecError | None) -> Found:
        """Compile in this process. Raises PolicyError under `require`, CompilerError."""
        if self.options.policy == "require":
            raise PolicyError(
                f"no artifact for {job.label}, and the policy is require"
                + (f": {reason.message}" if reason else ""),
                where=job.key,
                hint="set FUSEC_POLICY=wait to compile here when the farm cannot",
            ) from reason
        if _is_wrong(reason):
            # The same compiler runs here: what the farm found wrong would be wrong again.
            raise CompilerError(
                reason.message, where=job.key, hint="please report the graph; it runs eager"
            ) from reason
        self.recorder.count("local_compiles")
        return self.compile_local(
            job.graph, job.target, self.options, self.tiers.local, recorder=self.recorder
        )

    def farm_fault(self, error: RemoteError, consequence: str = COMPILED_HERE) -> None:
        """Count what the farm did not do, and tell it once a cause.

        A graph that it found wrong is told of by whoever runs it eager instead.
        """
        if _is_wrong(error):
            self.recorder.count("remote_errors")
            return
        cause = error.cause if isinstance(error, FarmUnavailable) else Cause.FAILED
        # A cache service that is down takes the farm behind it along: that is one fault.
        follows = cause in (Cause.UNREACHABLE, Cause.BAD_REPLY)
        covered = UNREACHABLE if follows else None
        self.notices.fault("remote_errors", f"farm-{cause}", error, consequence, covered_by=covered)


def _is_wrong(error: FusecError | None) -> TypeGuard[FarmFailed]:
    """Whether the farm has found that what it compiled does not compute what eager does."""
    return isinstance(error, FarmFailed) and error.kind == WRONG


class Ticket:
    """One graph on its way; made by `Resolver.submit`, shared by all who want the same graph.

    ``source`` says where the artifact came from, once `result` has returned.
    """

    def __init__(self, job: GraphJob, means: Means, on_end: Callable[[Ticket], None]) -> None:
        self.job = job
        self.source: Source | None = None
        self._means = means
        self._on_end = on_end
        self._users = 1
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._started = threading.Event()
        self._found: Found | None = None
        self._status: JobStatus | None = None
        self._at_farm: FarmJob | None = None  # set while the farm may still bring it
        self._reason: FusecError | None = None

    def done(self) -> bool:
        """True when `result` will not wait. Waits for the look-up itself, within the budget."""
        self._started.wait()
        return self._found is not None

    def result(self) -> Found:
        """The artifact: waits for the farm, or compiles here, by policy.

        Raises PolicyError under `require`, CompilerError when the compile here fails too.
        """
        self._started.wait()
        with self._lock:
            if self._found is not None:
                return self._found
            try:
                found = self._from_farm()
                if found is None:
                    found = self._means.compile_here(self.job, self._reason)
                    self.source = Source.COMPILED_HERE
            finally:
                self._on_end(self)
            self._found = found
            return found

    def cancel(self) -> None:
        """One user less. After the last one the farm is told, and `result` compiles here."""
        with self._counting:
            self._users -= 1
            if self._users > 0:
                return
        self._on_end(self)
        self._withdraw()

    def start(self) -> None:
        """Look up, then submit to the farm. Called once, by the resolver, maybe in a thread."""
        means = self._means
        try:
            hit = means.tiers.find([self.job.key]).get(self.job.key)
            means.recorder.count("graph_misses" if hit is None else "graph_hits")
            entries = self.job.fingerprint.entries
            means.journal.note("graph", entries, self.job.label, hit=hit is not None)
            if hit is not None:
                self._found, self.source = hit
                self._on_end(self)
            elif means.farm is not None and means.options.policy != "off":
                self._submit(means.farm)
        finally:
            self._started.set()

    def share(self) -> Ticket:
        """The same ticket for one more user."""
        with self._counting:
            self._users += 1
        return self

    def _submit(self, farm: FarmClient) -> None:
        with self._counting:
            if self._users <= 0:
                return  # cancelled while it was looked up
        job = self.job
        farm_job = FarmJob(
            job.fingerprint.hex,
            job.fingerprint.entries,
            job.graph_bytes,
            job.target,
            self._means.options,
            farm.waiter,
            self._means.priority,
            self._means.options.job,
        )
        try:
            with self._means.recorder.span("submit"):
                self._status = farm.submit(farm_job, self._means.options.wait_s)
        except FarmUnavailable as error:
            if error.cause is not Cause.BUSY:  # a full farm is asked again by `result`
                self._gave_up(error)
                return
        except WireError as error:
            self._gave_up(RemoteError(error.message, hint=error.hint))
            return
        with self._counting:
            self._at_farm = farm_job
            left = self._users <= 0
        if left:  # cancelled while it was sent
            self._withdraw()

    def _withdraw(self) -> None:
        """Tell the farm, if it has the job, that nobody here waits for it."""
        with self._counting:
            job, self._at_farm = self._at_farm, None
        if self._means.farm is not None and job is not None:
            self._means.farm.cancel(job.fingerprint)

    def _from_farm(self) -> Found | None:
        """Wait for the farm if it has the job; None, with the reason kept, when it did not help."""
        farm, farm_job, means = self._means.farm, self._at_farm, self._means
        if farm is None or farm_job is None:
            return None
        over = False
        try:
            with (
                means.recorder.span("submit"),
                means.progress.waiting(self.job.label) as report,
            ):
                farm.wait(
                    farm_job,
                    timeout_s=means.options.wait_s,
                    on_progress=report,
                    first=self._status,
                )
            over = True
        except FarmFailed as error:
            over = True
            self._gave_up(error)
            return None
        except FarmUnavailable as error:
            self._gave_up(error)
            return None
        finally:
            self._at_farm = None
            if not over:  # also when the user interrupts the wait
                farm.cancel(farm_job.fingerprint)
        found = means.tiers.fetch([self.job.key], fresh=True).get(self.job.key)
        if found is None:
            text = "the farm is done, but its artifact cannot be read from the cache service"
            self._gave_up(FarmUnavailable(text, Cause.BAD_REPLY))
            return None
        means.recorder.count("farm_compiles")
        self.source = Source.FARM
        return found

    def _gave_up(self, error: RemoteError) -> None:
        self._reason = error
        self._means.farm_fault(error)
