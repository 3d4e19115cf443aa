"""One repository of the Hub, what of it is meant, and how it is reached."""

from dataclasses import dataclass, field

from headscope.checkpoints.hub.ranges import DEADLINE_SECONDS, Deadline
from headscope.checkpoints.reference import HubReference
from headscope.facts.location import Location


@dataclass(frozen=True, slots=True)
class HubAccess:
    """A repository at a revision (None: its main branch); one deadline covers all that is read of it."""

    repo: str
    revision: str | None
    location: Location
    deadline: Deadline = field(default_factory=Deadline)

    def inside(self, name: str) -> str:
        """The path of a file in the repository: below the subfolder, if one is meant."""
        return f"{self.location.subfolder}/{name}" if self.location.subfolder else name


def access_to(found: HubReference, location: Location) -> HubAccess:
    """The access to what a location names."""
    revision = found.revision or location.revision
    seconds, is_shared = location.hub.timeout or DEADLINE_SECONDS, location.hub.budget is not None
    # Where many processes share what the Hub allows, to wait for a turn is not a sign of a slow server.
    return HubAccess(found.repo, revision, location, Deadline(seconds, patient=is_shared))
