"""What this pod does for the cluster: its services, and the lease if it leads. On threads and connections of their own,
so that neither the loop nor the heart waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from forge.cluster.firing import Cron
from forge.cluster.lease import Lease
from forge.cluster.service import ServiceRunner
from forge.cluster.services import services
from forge.master.pod.meter import Meter, Metering
from forge.master.pod.presence import Presence
from forge.master.pod_state import PodState
from forge.master.workers.workers import Workers
from forge.master.workers.zygotes import Zygotes
from forge.storage import Storage

__all__ = ["PodServices"]

# Seconds in which a pod that has just started only takes up work, and sees to it that there are not too many workers.
# All services of a new leader at once, with their connections and first plans, took a tenth of the machine for the
# first second of a backlog.
QUIET = 1.0


class PodServices:
    """The services of one pod. Only `join` waits for the database."""

    def __init__(
        self,
        storages: Sequence[Storage],
        state: PodState,
        presence: Presence,
        zygotes: Zygotes,
        meter: Meter,
        workers: Workers,
    ) -> None:
        """Of the pod's storages the last one is for them alone and has a timeout; the one before is the heart's, and
        the lease is tended there: it must not wait for a service."""
        heart, storage = storages[-2], storages[-1]

        def pod() -> int:
            return presence.who.pod.id

        self._lease = Lease(heart.leases, pod, lambda: state.config.leader_ttl)
        self._metering = Metering(meter, storages, pod, workers.processes)
        mine = services(
            storage,
            storages[0],
            lambda: state.config,
            presence.streak,
            lambda: zygotes.current.schedules,
            meter.taken_back,
        )
        self._runner = ServiceRunner([*mine, self._metering], self._lease, quiet=QUIET)

    def start(self) -> None:
        """Start the services. The pod must be registered."""
        self._runner.start()

    def nobody_leads(self) -> None:
        """Another pod has ceased to lead: try to lead at once."""
        self._runner.poke()

    def schedules_changed(self) -> None:
        """Have cron look at once: somebody may have made or changed a schedule."""
        self._runner.hasten(Cron.name)

    def stop(self) -> None:
        """Begin no more rounds, and let another pod lead."""
        self._runner.stop()

    def join(self, timeout: float) -> None:
        """Wait so many seconds for what is under way, and report what has been counted since the last report."""
        self._runner.join(timeout)
        self._metering.last(timeout)
