"""Headers of safetensors files that lie, burst, or say what cannot be."""

import json
from typing import Any

from hostile.corpus.case import ONE_TENSOR, Case, safetensors, with_files


def _entry(**changed: Any) -> dict[str, Any]:
    return {"x": {**ONE_TENSOR["x"], **changed}}


_FINE = json.dumps(ONE_TENSOR).encode()
_TWICE = b"{%s,%s}" % (_FINE[1:-1], _FINE[1:-1])
_FILES: dict[str, tuple[bytes, str]] = {
    "length over the file": (safetensors(_FINE, length=10_000), "ends early: 10,008 bytes were expected"),
    "length of 2^64 - 1": (safetensors(_FINE, length=2**64 - 1), "claims"),
    "length of 2^63": (safetensors(_FINE, length=2**63), "claims"),
    "length of nothing": (safetensors(_FINE, length=0), "not valid JSON"),
    "length too short": (safetensors(_FINE, length=10), "not valid JSON"),
    "cut in the length": (safetensors(_FINE)[:5], "fewer than"),
    "cut in the header": (safetensors(_FINE)[:20], "ends early"),
    "cut in the data": (safetensors(_FINE)[:-1], "ends early"),
    "more data than told": (safetensors(_FINE, b"\0" * 5), "accounts for"),
    "shape of 2^63": (safetensors(_entry(shape=[2**63])), "overflows"),
    "shape of 2^62 x 4": (safetensors(_entry(shape=[2**62, 4])), "overflows"),
    "shape over 64 bits": (safetensors(_entry(shape=[2**70])), "whole numbers"),
    "shape of 9,000 digits": (
        safetensors(b'{"x":{"dtype":"F32","shape":[' + b"9" * 9000 + b'],"data_offsets":[0,4]}}'),
        "not valid JSON",
    ),
    "negative shape": (safetensors(_entry(shape=[-1])), "whole numbers"),
    "true as shape": (safetensors(_entry(shape=[True])), "whole numbers"),
    "text as shape": (safetensors(_entry(shape="1")), "whole numbers"),
    "null as shape": (safetensors(_entry(shape=None)), "whole numbers"),
    "broken shape": (safetensors(_entry(shape=[1.5])), "whole numbers"),
    "offsets backwards": (safetensors(_entry(data_offsets=[4, 0])), "needs 4 bytes"),
    "negative offsets": (safetensors(_entry(data_offsets=[-4, 0])), "whole numbers"),
    "huge offsets": (safetensors(_entry(data_offsets=[2**63, 2**63 + 4])), "gap or an overlap"),
    "one offset": (safetensors(_entry(data_offsets=[4])), "pair"),
    "unknown dtype": (safetensors(_entry(dtype="F31")), "unknown dtype"),
    "dtype of escapes": (safetensors(_entry(dtype="\x1b[2J\x9b")), "unknown dtype"),
    "number as dtype": (safetensors(_entry(dtype=1)), "unknown dtype"),
    "gap": (safetensors(_entry(data_offsets=[4, 8]), b"\0" * 8), "gap or an overlap"),
    "overlap": (safetensors(_entry() | {"y": ONE_TENSOR["x"]}), "gap or an overlap"),
    "not an object": (safetensors(b"[1]"), "not a JSON object"),
    "null": (safetensors(b"null"), "not a JSON object"),
    "entry of null": (safetensors(b'{"x":null}'), "not an object"),
    "NaN": (safetensors(b'{"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}'), "NaN"),
    "Infinity": (safetensors(b'{"x":Infinity}'), "Infinity"),
    "not UTF-8": (safetensors(b'{"\xff":1}'), "not valid JSON"),
    "UTF-16": (safetensors(_FINE.decode().encode("utf-16")), "not valid JSON"),
    "byte order mark": (safetensors(b"\xef\xbb\xbf" + _FINE), "not valid JSON"),
    "half a surrogate": (safetensors(b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'), "surrogate"),
    "metadata of numbers": (safetensors({"__metadata__": {"a": 1}, **ONE_TENSOR}), "__metadata__"),
    "metadata as a list": (safetensors({"__metadata__": [], **ONE_TENSOR}), "__metadata__"),
    "200 levels": (safetensors(b'{"x":' * 200 + b"1" + b"}" * 200), "nested deeper"),
    "a million levels": (safetensors(b"[" * 1_000_000), "not valid JSON"),
    "a million objects": (safetensors(b'{"a":' * 1_000_000), "more values than can be read"),
    "over the limit": (safetensors(b" " * 25_000_001), "over the limit"),
    "NUL bytes": (safetensors(b"\0" * 100), "not valid JSON"),
    "a name of escapes": (safetensors({"\x1b]0;owned\x07": 1}), "not an object"),
    "nothing": (safetensors(b""), "not valid JSON"),
}

CASES = (
    *(
        Case(f"header: {name}", with_files(files={"model.safetensors": content}), words=(word, "model.safetensors"))
        for name, (content, word) in _FILES.items()
    ),
    Case("header: key twice", with_files(files={"model.safetensors": safetensors(_TWICE)}), (0,)),
)
