"""Hostile labeled data beside a healthy checkpoint: told in a sentence, counted within bounds, shown as escapes."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

from hostile.corpus.case import Case

_EVIL = "x\x1b[2J\u202e[bold]\u200b"
_MODEL = "distilbert-base-uncased-finetuned-sst-2-english"


def _checked(name: str, content: bytes, *more: str) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        (folder / name).write_bytes(content)
        return _arguments(folder / name, *more)

    return build


def _arguments(data: Path, *more: str) -> list[str]:
    column = [] if "--label-column" in more else ["--label-column", "label"]
    return ["check", _MODEL, "--offline", "--for", "inference", "--data", str(data), *column, *more]


def _pipe(folder: Path) -> list[str]:
    os.mkfifo(folder / "rows.csv")
    return _arguments(folder / "rows.csv")


def _sparse(folder: Path) -> list[str]:
    with (folder / "rows.csv").open("wb") as file:
        file.write(b"text,label\n")
        file.truncate(1 << 33)
    return _arguments(folder / "rows.csv")


def _saved(state: bytes, info: bytes = b"{}") -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        (folder / "saved").mkdir()
        (folder / "saved" / "state.json").write_bytes(state)
        (folder / "saved" / "dataset_info.json").write_bytes(info)
        return _arguments(folder / "saved")

    return build


def _lines(*labels: object) -> bytes:
    return "".join(json.dumps({"label": label}) + "\n" for label in labels).encode()


_HASHES = b"".join(b'{"label": %d}\n' % (number * ((1 << 61) - 1)) for number in range(30_000))
CASES = (
    Case("labels named with control characters", _checked("rows.jsonl", _lines(_EVIL, _EVIL, "NEGATIVE")), (0,),
         ("HS001",)),
    Case("a column named with control characters", _checked("rows.csv", f"{_EVIL},b\n1,2\n".encode()), (2,),
         ("no column 'label'",)),
    Case("a wanted column named with control characters",
         _checked("rows.csv", b"text\na\n", "--label-column", _EVIL), (2,), ("has no column",)),
    Case("labeled data are an archive", _checked("rows.csv", gzip.compress(b"text,label\na,0\n")), (3,), ("gzip",)),
    Case("labeled data are a pickle", _checked("rows.csv", b"\x80\x04\x95\0"), (3,), ("pickle",)),
    Case("labeled data are bytes", _checked("rows.csv", bytes(range(256))), (3,)),
    Case("labeled data hold NUL", _checked("rows.csv", b"text,label\na\0,b\n"), (3,), ("NUL",)),
    Case("labeled data are ragged", _checked("rows.csv", b"text,label\na,b,c\n"), (3,), ("3 cells in line 2",)),
    Case("labeled data never end a quote", _checked("rows.csv", b'text,label\n"a' + b"\n,b" * 99), (3,),
         ("not a valid csv",)),
    Case("labeled data are one line of a million", _sparse, (3,), ("characters in line 2",)),
    Case("labeled data are a pipe", _pipe, (3,), ("not a regular file",)),
    Case("labels nested without end", _checked("rows.jsonl", b'{"label": ' + b"[" * 100_000 + b"}\n"), (3,),
         ("not JSON lines",)),
    Case("labels are objects", _checked("rows.jsonl", _lines({"a": 1})), (2,), ("an object (dict)",)),
    Case("labels are huge numbers", _checked("rows.jsonl", _lines(10**4000, 0, 1)), (2,), ("64 bits",)),
    Case("labels are infinite", _checked("rows.jsonl", b'{"label": Infinity}\n{"label": -1e999}\n'), (2,),
         ("infinite",)),
    Case("labels collide as hashes", _checked("rows.jsonl", _HASHES), (2,), ("64 bits",)),
    Case("labels are a hundred thousand names", _checked("rows.jsonl", _lines(*map(str, range(10**5)))), (2,),
         ("different values",)),
    Case("labels are one very long text", _checked("rows.jsonl", _lines("x" * 10**6)), (2,), ("1,000,000 characters",)),
    Case("a saved dataset leads elsewhere", _saved(b'{"_data_files": [{"filename": "../../etc/passwd"}]}'), (3,),
         ("same folder",)),
    Case("a saved dataset is no object", _saved(b"[1]"), (3,), ("JSON object",)),
    Case("a saved dataset is nested without end", _saved(b"[" * 100_000), (3,), ("not valid JSON",)),
    Case("a saved dataset lacks its file", _saved(b'{"_data_files": [{"filename": "a.arrow"}]}'), (3,), ("a.arrow",)),
)  # fmt: skip
