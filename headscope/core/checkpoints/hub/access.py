"""One repository of the Hub, what of it is meant, and how it is reached."""

from dataclasses import dataclass, field

from headscope.core.checkpoints.hub.requests import DEADLINE_SECONDS, Deadline, HubConnection
from headscope.core.checkpoints.reference import HubReference
from headscope.core.facts.stored.location import Location


@dataclass(frozen=True, slots=True)
class HubAccess:
    """A repository at a revision (None: its main branch); all that is read of it uses one connection."""

    repo: str
    revision: str | None
    location: Location
    connection: HubConnection = field(default_factory=HubConnection)

    def inside(self, name: str) -> str:
        """Gives the path of a file in the repository: below the subfolder, if there is one."""
        return f"{self.location.subfolder}/{name}" if self.location.subfolder else name


def access_to(found: HubReference, location: Location) -> HubAccess:
    """Gives the access to what a location names."""
    hub = location.hub
    # Where many processes share what the Hub allows, to wait for a turn is not a sign of a slow server.
    deadline = Deadline(hub.timeout or DEADLINE_SECONDS, patient=hub.budget is not None)
    return HubAccess(
        found.repo, found.revision or location.revision, location, HubConnection(hub.token, deadline, hub.budget)
    )
