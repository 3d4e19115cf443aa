"""The table of a scan in a folder with a URL, such as `s3://bucket/heads`: written by others, read for the summary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from types import TracebackType
from typing import Any

from headscope.errors import UsageError, first_line
from headscope.fleet.output import Known, Row
from headscope.fleet.parquet import rows_of_part, schema
from headscope.upstream.optional.ray import FILE


class RemoteFolder:
    """A folder with a URL. It holds nothing at the start of a scan: it can't be continued."""

    def __init__(self, url: str) -> None:
        """Looks at the folder. Raises UsageError where it can't be reached, or holds something."""
        schema()
        self.url = url
        self.known = Known()
        self._system, self._path = _system(url)
        try:
            found = self._files()
        except OSError as err:
            raise UsageError(f"{url} can't be read: {first_line(err)}", "check the URL and your credentials") from err
        if found:
            raise UsageError(
                f"{url} holds files already",
                "name another folder; --resume and --only-new continue local folders only",
            )

    def __enter__(self) -> RemoteFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def rows_added(self) -> Iterator[Row]:
        """The rows of the files that Ray has written. Raises UsageError where one can't be read."""
        for path in self._files():
            if FILE.fullmatch(path.name):
                with self._system.open_input_file(str(path)) as file:
                    yield from rows_of_part(path, file)

    def _files(self) -> list[PurePosixPath]:
        from pyarrow import fs

        every = self._system.get_file_info(fs.FileSelector(self._path, recursive=True, allow_not_found=True))
        return sorted(PurePosixPath(one.path) for one in every if one.type == fs.FileType.File)


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL as Ray finds it, by Arrow or by fsspec, and the path in it. Raises UsageError."""
    import pyarrow
    from pyarrow import fs

    try:
        system, path = fs.FileSystem.from_uri(url)
    except (pyarrow.ArrowException, OSError, ValueError) as err:
        try:
            from fsspec.core import url_to_fs

            found, path = url_to_fs(url)
        except (ImportError, ValueError, OSError) as other:
            raise UsageError(
                f"{url} can't be written: {first_line(other)}", "install what fsspec needs for such URLs"
            ) from err
        system = fs.PyFileSystem(fs.FSSpecHandler(found))
    return system, path.rstrip("/")
