"""An operator's wish to have a graph tuned: one that was left untuned, or, by force, one that is
tuned already, whose kernels are then timed anew against those that were chosen for it."""

from __future__ import annotations

from farm.restore import CannotTune, Restoring, Why
from farm.spaces import Spaces
from farm.tuning import Tuning
from farm.verifier import Verifier
from fusec.artifact.quality import Quality, Tier, quality_of
from fusec.remote.farm_status import Retuned, RetuneState


class Retuning:
    """Hands graphs of the store to `tuning`, None at a farm that tunes nothing."""

    def __init__(
        self, spaces: Spaces, restoring: Restoring, verifier: Verifier, tuning: Tuning | None
    ) -> None:
        self._spaces = spaces
        self._restoring = restoring
        self._verifier = verifier
        self._tuning = tuning

    async def begin(self, tenant: str, fingerprint: str, *, force: bool) -> Retuned:
        """Have a published graph of a tenant tuned, behind all other work.

        force: also where it is tuned already. Returns once it is known that it can be. Raises
        CannotTune, UnknownNamespace, WireError, and TaskFailed without a store.
        """
        if self._tuning is None:
            raise CannotTune(
                Why.NO_TUNING, "this farm tunes nothing", "set FUSEC_FARM_TUNE=1 at its gateways"
            )
        shelf = self._spaces.of(tenant).shelf
        standing = await shelf.standing(f"graph/{fingerprint}")
        if standing is None:
            text = f"no graph {fingerprint} stands in this namespace"
            hint = "`fusec farm status --json` has whole keys; a submit compiles and tunes a graph"
            raise CannotTune(Why.UNKNOWN, text, hint)
        quality = quality_of(standing.manifest.meta)
        again = force and quality.tier is Tier.TUNED
        if standing.manifest.is_final and not again:
            raise _final(quality)
        request = await self._restoring.request(shelf, fingerprint)
        state = RetuneState.BEGUN
        if self._tuning.holds((tenant, fingerprint)):
            state = RetuneState.KNOWN
        else:
            self._tuning.add(tenant, fingerprint, request.target, again=again)
        if self._verifier.device_for(request.target) is None:
            state = RetuneState.WAITS
        return Retuned(fingerprint, state, request.target.isa)


def _final(quality: Quality) -> CannotTune:
    if quality.tier is Tier.TUNED:
        text = f"it is tuned already: {quality.device} has timed {quality.tuned} of its kernels"
        hint = "--force times them anew, and replaces what is beaten"
        return CannotTune(Why.FINAL, text, hint)
    text = "it has nothing to tune: there is one way to build each of its kernels"
    return CannotTune(Why.FINAL, text)
