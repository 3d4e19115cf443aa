"""Answers of real servers, kept in `recorded/`: how each checkpoint is made, what was asked, and a replay on loopback.

`python -m serving.recordings make NAME FOLDER` writes the checkpoint to serve; then, with the server running,
`python -m serving.recordings record NAME FOLDER --url URL --version VERSION` keeps its answers.
"""

import argparse
import datetime
import hashlib
import http.client
import json
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
import transformers
from serving.servers import Asked, send_bytes, serve_with

import headscope
from headscope.errors import Unsupported

FOLDER = Path(__file__).parent / "recorded"
LABELS = ("bad", "fair", "good")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_SIZES = {
    "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
    "max_position_embeddings": 512, "pad_token_id": 0,
}  # fmt: skip
_STEPS = 64
NOT_RECORDED = 599
"""The status of a replay's answer to a request that was not recorded."""


@dataclass(frozen=True)
class Recipe:
    """How the checkpoint of a recording is made: a family of Transformers, and its labels."""

    family: str
    labels: tuple[str, ...] = LABELS


RECIPES = {
    "vllm-bert": Recipe("Bert"),
    "vllm-ernie": Recipe("Ernie"),
    "infinity-bert": Recipe("Bert"),
    "infinity-bert-one-label": Recipe("Bert", ("score",)),
    "mlserver-bert": Recipe("Bert"),
    "llama-cpp-bert-one-label": Recipe("Bert", ("score",)),
}


def save_recipe(name: str, folder: Path) -> str:
    """Writes the checkpoint of a recording, the same values on every machine. Returns the digest of its tensors."""
    recipe = RECIPES[name]
    pieces = [letter for letter in string.printable if letter.isprintable() and letter not in string.ascii_uppercase]
    pieces = [piece for piece in pieces if not piece.isspace()]
    words = [*_SPECIAL, *pieces, *(f"##{piece}" for piece in pieces if piece.isalnum())]
    config = getattr(transformers, f"{recipe.family}Config")(
        vocab_size=len(words), id2label=dict(enumerate(recipe.labels)), **_SIZES
    )
    model = getattr(transformers, f"{recipe.family}ForSequenceClassification")(config)
    digest = hashlib.sha256()
    draw = np.random.RandomState(29)  # NumPy promises that its values stay the same
    with torch.no_grad():
        for parameter_name, parameter in sorted(model.named_parameters()):
            steps = draw.randint(-_STEPS, _STEPS, tuple(parameter.shape))
            values = steps.astype(np.float32) / (4 * _STEPS) + ("LayerNorm.weight" in parameter_name)
            parameter.copy_(torch.from_numpy(values))
            digest.update(f"{parameter_name} {values.shape}".encode() + values.astype("<f4").tobytes())
    model.save_pretrained(folder)
    vocabulary = {word: at for at, word in enumerate(words)}
    tokenizer = transformers.BertTokenizer(vocab=vocabulary, model_max_length=512)
    tokenizer.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return digest.hexdigest()


@dataclass
class Recording:
    """What a server answered: one entry for each different request."""

    name: str
    engine: str
    version: str
    recorded_on: str
    started: str
    digest: str
    exchanges: list[dict[str, Any]] = field(default_factory=list)

    def answer_to(self, asked: Asked) -> dict[str, Any] | None:
        """The answer that was kept for a request, None for one that was not made."""
        wanted = (asked.method, asked.path, asked.body)
        return next((one for one in self.exchanges if (one["method"], one["path"], one["body"]) == wanted), None)


def recording(name: str) -> Recording:
    """A recording that is kept."""
    return Recording(**json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))


@contextmanager
def replayed(kept: Recording) -> Iterator[tuple[str, list[Asked]]]:
    """The URL of a server that answers as the recorded one did, and the requests that it has no answer to."""
    unknown: list[Asked] = []

    def answer(handler: BaseHTTPRequestHandler, asked: Asked) -> None:
        found = kept.answer_to(asked)
        if found is None:
            unknown.append(asked)
            return send_bytes(handler, b"this request was not recorded", NOT_RECORDED)
        content = found["text"] if "text" in found else json.dumps(found["json"])
        return send_bytes(handler, content.encode(), found["status"], Content_Type=found["content_type"])

    with serve_with(answer) as url:
        yield url, unknown


@contextmanager
def _recorded(target: str, kept: Recording, folder: str) -> Iterator[str]:
    """The URL of a server that passes each request on to another, and keeps its answers, without the folder's path."""
    origin = urlsplit(target)

    def answer(handler: BaseHTTPRequestHandler, asked: Asked) -> None:
        connection = http.client.HTTPConnection(origin.hostname or "", origin.port, timeout=120)
        data = None if asked.body is None else json.dumps(asked.body)
        connection.request(asked.method, asked.path, data, {"Content-Type": "application/json"} if data else {})
        reply = connection.getresponse()
        content = reply.read().replace(folder.encode(), b"FOLDER")
        kind = reply.headers.get("Content-Type", "")
        try:
            said = {"json": json.loads(content)}
        except ValueError:
            said = {"text": content.decode()}
        request = {"method": asked.method, "path": asked.path, "body": asked.body}
        if kept.answer_to(asked) is None:
            kept.exchanges.append({**request, "status": reply.status, "content_type": kind, **said})
        send_bytes(handler, content, reply.status, Content_Type=kind)

    with serve_with(answer) as url:
        yield url


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes a checkpoint, or keeps the answers of a running server that serves it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("make", "record"))
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", help="the server")
    parser.add_argument("--engine", help="its name, as docs/verify.md has it")
    parser.add_argument("--version", help="its version")
    parser.add_argument("--started", default="", help="the packages and the command that it was started with")
    given = parser.parse_args(arguments)
    digest = save_recipe(given.name, given.folder)
    if given.what == "make":
        return
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    kept = Recording(given.name, given.engine, given.version, today, given.started, digest)
    with _recorded(given.url, kept, str(given.folder)) as url:
        print(headscope.verify_served(str(given.folder), url))
        with suppress(Unsupported):
            print(headscope.verify_served(str(given.folder), url, logits=True))
    FOLDER.mkdir(exist_ok=True)
    rows = ",\n".join(json.dumps(one) for one in kept.exchanges)
    facts = json.dumps(asdict(kept) | {"exchanges": []}, indent=1).removesuffix("[]\n}")
    (FOLDER / f"{given.name}.json").write_text(f"{facts}[\n{rows}\n]}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
