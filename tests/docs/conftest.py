"""What several tests of the pages share."""

from pathlib import Path

import pytest

from tests.docs.look_site import write_project
from tests.docs.test_site import browser_problem


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of the page that looks at checkpoints, and of those that it leads to; for a browser."""
    if browser_problem():
        pytest.skip(browser_problem())
    found = tmp_path_factory.mktemp("project")
    write_project(found)
    return found
