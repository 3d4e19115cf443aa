"""What the Hub's client raises, as errors of ours that say what to do next."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headscope.checkpoints.manifest import CONFIG
from headscope.errors import Gated, HeadscopeError, NetworkError, NotFound
from headscope.upstream.hub import transport_error

_UNAUTHORIZED = (401, 403)


@contextmanager
def understood(repo: str) -> Iterator[None]:
    """An answer in another form than expected, as an error of the network: it is the server that is at fault."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as err:
        raise NetworkError(
            f"the Hub's answer on {repo} cannot be understood ({type(err).__name__})",
            "check that HF_ENDPOINT is a Hub",
        ) from err


@contextmanager
def translated(repo: str, revision: str | None) -> Iterator[None]:
    """The client's exceptions as ours, each with its next step."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{repo}"
    try:
        yield
    except HeadscopeError:
        raise
    except errors.GatedRepoError as err:
        raise Gated(
            f"{repo} is gated: you must accept its license", f"accept it at {page}, then run `hf auth login`"
        ) from err
    except errors.RepositoryNotFoundError as err:
        raise NotFound(
            f"the Hub has no repository {repo}, or it is private", "check the name; for a private one `hf auth login`"
        ) from err
    except errors.RevisionNotFoundError as err:
        raise NotFound(f"{repo} has no revision {revision or 'main'}", f"see {page}/tree/main") from err
    except errors.EntryNotFoundError as err:
        raise NotFound(f"{repo} holds no {CONFIG}", "it may not be a Transformers model; see its page") from err
    except errors.HFValidationError as err:
        raise NotFound(f"{repo} is not a valid Hub ID: {err}", "a Hub ID is `name` or `owner/name`") from err
    except errors.HfHubHTTPError as err:
        raise _http_error(repo, err) from err
    except (transport_error(), OSError) as err:
        raise NetworkError(f"{repo} could not be read from the Hub: {type(err).__name__}", "try again later") from err


def _http_error(repo: str, err: Any) -> HeadscopeError:
    status = getattr(getattr(err, "response", None), "status_code", None)
    if status in _UNAUTHORIZED:
        return Gated(f"the Hub refused access to {repo} ({status})", "`hf auth login`, or pass --token")
    return NetworkError(f"the Hub answered {status} for {repo}", "try again later")
