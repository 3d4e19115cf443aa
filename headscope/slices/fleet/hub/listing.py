"""Models that a listing of the Hub names, by author, tag, text or collection, with their commits and files.

A page of a listing is one request for many models. What is read of them afterwards needs no question what is there.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode

from headscope.core.checkpoints.formats.config_file import LARGEST_JSON
from headscope.core.checkpoints.hub.access import HubAccess, access_to
from headscope.core.checkpoints.hub.offline import why_offline
from headscope.core.checkpoints.hub.ranges import read_whole
from headscope.core.checkpoints.hub.repository import is_id, plain_names
from headscope.core.checkpoints.hub.requests import Deadline, translated, understood
from headscope.core.checkpoints.reference import HubReference, parse_reference
from headscope.core.facts.stored.location import HubOptions, Location
from headscope.errors import NetworkError, NotFound

_LISTING = "the listing"
_EXPANDED_FIELDS = ("sha", "siblings")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_MOST_OF_AUTHOR = 2000
_LARGEST_PAGE = 5 * LARGEST_JSON
_MOST_REPEATED = 2_000
"""Entries in a row without a new model: two of the Hub's longest pages, as models move between pages meanwhile."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model as a listing names it: its id, and its commit and files where the listing tells these.

    An id that is none on the Hub is kept too: whoever reads the model finds out, and no model is left out.
    """

    repo: str
    commit: str | None = None
    names: tuple[str, ...] | None = None

    def location(self, hub: HubOptions | None = None) -> Location:
        """Gives the place to read it from: the files that were listed, at the commit that was listed."""
        # A folder of the same name would hide it, and what isn't an id must not be taken for a path.
        is_plain_id = is_id(self.repo) and isinstance(parse_reference(self.repo), HubReference)
        reference = self.repo if is_plain_id else f"hf://{self.repo}"
        return Location(reference, commit=self.commit, names=self.names, hub=hub or HubOptions())


def listed_models(
    hub: HubOptions,
    *,
    author: str | None = None,
    filters: Iterable[str] = (),
    search: str | None = None,
    collection: str | None = None,
    limit: int | None = None,
) -> Iterator[ListedModel]:
    """Lists the models of an author, with all tags of `filters`, with a text in their ids, or of a collection (slug).

    Pages are requested as they are needed. Raises Offline, NotFound for an unknown collection, or NetworkError.
    """
    if collection is not None:
        return islice(_list_collection(hub, collection), limit)
    found = _search_models(hub, author=author, filter=list(filters), search=search, limit=limit)
    return islice(found, limit)


def _search_models(hub: HubOptions, **criteria: Any) -> Iterator[ListedModel]:
    """Lists the models that fit the criteria, each once. Raises NetworkError for a listing that repeats itself."""
    given = [(name, value) for name, value in criteria.items() if value]
    known: set[str] = set()
    repeated = 0
    for item in _list_items(hub, f"/api/models?{urlencode([*given, ('expand', _EXPANDED_FIELDS)], doseq=True)}"):
        model = _parse_model(item)
        if model is None or model.repo in known:
            repeated += 1
            if repeated > _MOST_REPEATED:  # a server that ignores the cursor would never end
                raise NetworkError("the Hub's listing repeats itself", "check that HF_ENDPOINT is a Hub")
            continue
        repeated = 0
        known.add(model.repo)
        yield model


def _list_collection(hub: HubOptions, slug: str) -> Iterator[ListedModel]:
    """Lists the models of a collection, which names ids only; listings of their authors give commits and files."""
    items = _list_items(hub, f"/api/collections/{quote(slug)}", slug)
    found = [one["id"] for one in items if one.get("type") == "model" and isinstance(one.get("id"), str)]
    listed: dict[str, dict[str, ListedModel]] = {}
    for repo in dict.fromkeys(found):
        author = repo.rpartition("/")[0]
        if author and author not in listed:
            listed[author] = _list_author_models(hub, author, {one for one in found if one.startswith(f"{author}/")})
        yield listed.get(author, {}).get(repo, ListedModel(repo))


def _list_author_models(hub: HubOptions, author: str, wanted: set[str]) -> dict[str, ListedModel]:
    """Finds the wanted models of an author by id, as far as a few pages hold them."""
    # A search by its name makes the listing of an author with many models short.
    (only,) = wanted if len(wanted) == 1 else (None,)
    search = only.rpartition("/")[2] if only else None
    found: dict[str, ListedModel] = {}
    for model in islice(_search_models(hub, author=author, search=search), _MOST_OF_AUTHOR):
        if model.repo in wanted:
            found[model.repo] = model
        if len(found) == len(wanted):
            break
    return found


def _list_items(hub: HubOptions, path: str, collection: str = "") -> Iterator[dict[str, Any]]:
    """Reads the items of a listing, page by page; one that is not an object is left out."""
    from huggingface_hub import constants

    barred = why_offline(_page_access(hub))
    if barred is not None:
        raise barred
    url = page = f"{constants.ENDPOINT}{path}"
    while page:
        access = _page_access(hub)  # a new one for each page: the time limit is for a page, not for the listing
        with translated(access.repo, access.revision):
            try:
                found = read_whole(access.connection, url, access.repo, _LARGEST_PAGE, store=page)
            except Exception as err:
                if collection and getattr(getattr(err, "response", None), "status_code", None) == 404:
                    raise NotFound(f"the Hub has no collection {collection}", "check its slug") from err
                raise
            with understood(access.repo):
                content = json.loads(found.content)
                items = content["items"] if collection else list(content)
        yield from (item for item in items if isinstance(item, dict))
        page = found.next or ""


def _page_access(hub: HubOptions) -> HubAccess:
    """Gives the access to one page, with its own deadline, in which a pause that the Hub requests doesn't count."""
    access = access_to(HubReference(_LISTING), Location(_LISTING, hub=hub))
    deadline = Deadline(access.connection.deadline.seconds, patient=True)
    return replace(access, connection=replace(access.connection, deadline=deadline))


def _parse_model(item: Mapping[str, Any]) -> ListedModel | None:
    """Reads a model out of an entry of a page; None for an entry without a name."""
    repo, commit, files = item.get("id"), item.get("sha"), item.get("siblings")
    if not isinstance(repo, str):
        return None
    if not is_id(repo) or not isinstance(commit, str) or not _COMMIT.fullmatch(commit) or not isinstance(files, list):
        return ListedModel(repo)
    return ListedModel(repo, commit, plain_names(files))
