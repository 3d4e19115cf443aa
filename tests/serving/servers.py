"""Loopback servers that speak as inference servers do: `with serve("vllm", scores=..., labels=[...]) as url`.

The forms were written from the sources of vLLM 0.32.0 (`entrypoints/pooling`), Text Embeddings Inference 0d124dc
(`router/src/http`), SGLang 0.5.23 (`srt/entrypoints`), Infinity 0.0.77 (`infinity_server.py`), MLServer a325e52
(`rest/app.py`, `runtimes/huggingface`), llama.cpp 2f69034 (`tools/server`), and the lists of Transformers' pipeline.
"""

import json
import math
import random
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Scores = Callable[[tuple[str, ...]], Sequence[float]]
"""Logits of a text or a pair."""


@dataclass
class Asked:
    """A request as a fake server got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Refusal(Exception):
    """An answer with a status of its own."""

    status: int
    payload: Any


@dataclass
class FakeServer:
    """One fake server: how it scores, and what it was asked."""

    scores: Scores
    labels: Sequence[str]
    most_texts: int = 1000
    asked: list[Asked] = field(default_factory=list)

    def given(self, text: Sequence[str], raw: bool) -> list[float]:
        logits = list(self.scores(tuple(text)))
        return logits if raw else squashed(logits)

    def named(self, text: Sequence[str], raw: bool) -> list[dict[str, Any]]:
        rows = zip(self.labels, self.given(text, raw), strict=True)
        return sorted(({"label": label, "score": score} for label, score in rows), key=lambda row: -row["score"])

    def limit(self, texts: Sequence[Any]) -> None:
        if len(texts) > self.most_texts:
            told = f"batch size {len(texts)} > maximum allowed batch size {self.most_texts}"
            raise Refusal(422, {"error": told, "error_type": "Validation"})


def squashed(logits: Sequence[float]) -> list[float]:
    """Softmax, or the sigmoid of one score."""
    if len(logits) == 1:
        return [1 / (1 + math.exp(-logits[0]))]
    powers = [math.exp(logit - max(logits)) for logit in logits]
    return [power / sum(powers) for power in powers]


def shuffled(rows: list[Any]) -> list[Any]:
    return random.Random(len(rows)).sample(rows, len(rows))


def ranked(fake: FakeServer, body: Any, raw: bool, name: str, documents: str = "documents") -> list[dict[str, Any]]:
    rows = [{"index": at, name: fake.given((body["query"], text), raw)[0]} for at, text in enumerate(body[documents])]
    return sorted(rows, key=lambda row: -row[name])


def vllm(fake: FakeServer, method: str, path: str, body: Any) -> Any:
    match method, path:
        case "GET", "/version":
            return {"version": "0.32.0"}
        case "GET", "/v1/models":
            return {"object": "list", "data": [{"id": "served", "object": "model", "owned_by": "vllm", "root": "/m"}]}
        case "POST", "/classify" | "/pooling":
            assert body["model"] == "served"
            fake.limit(body["input"])
            raw = body.get("use_activation") is False
            found = [fake.given((text,), raw) for text in body["input"]]
            if path == "/pooling":
                assert body["task"] == "classify"
                return {"object": "list", "data": [{"index": at, "data": row} for at, row in enumerate(found)]}
            rows = [
                {"index": at, "label": fake.labels[row.index(max(row))], "probs": row, "num_classes": len(row)}
                for at, row in enumerate(found)
            ]
            return {"id": "classify-1", "object": "list", "model": "served", "data": rows, "usage": {}}
        case "POST", "/score":
            raw = body.get("use_activation") is False
            pairs = zip(body["text_1"], body["text_2"], strict=True)
            rows = [{"index": at, "object": "score", "score": fake.given(p, raw)[0]} for at, p in enumerate(pairs)]
            return {"object": "list", "data": rows}
    return None


def tei(fake: FakeServer, method: str, path: str, body: Any) -> Any:
    match method, path:
        case "GET", "/info":
            names = {str(at): label for at, label in enumerate(fake.labels)}
            kind = "classifier" if len(fake.labels) > 1 else "reranker"
            return {
                "model_id": "me/model", "model_sha": None, "model_dtype": "float32", "served_model_name": "me/model",
                "model_type": {kind: {"id2label": names, "label2id": {v: int(k) for k, v in names.items()}}},
                "max_client_batch_size": 32, "auto_truncate": True, "version": "1.9.3",
            }  # fmt: skip
        case "POST", "/predict":
            fake.limit(body["inputs"])
            return [fake.named(text, body["raw_scores"]) for text in body["inputs"]]
    return None


def sglang(fake: FakeServer, method: str, path: str, body: Any) -> Any:  # noqa: PLR0911  # one return per endpoint
    match method, path:
        case "GET", "/model_info":
            return {"model_path": "/m", "is_generation": False, "served_model_name": "/m"}
        case "GET", "/server_info":
            return {"version": "0.5.23", "internal_states": []}
        case "GET", "/v1/models":
            return {"object": "list", "data": [{"id": "/m", "object": "model", "owned_by": "sglang", "root": "/m"}]}
        case "POST", "/v1/classify":
            rows = [fake.given((text,), False) for text in body["input"]]
            return {"data": [{"index": i, "label": "x", "probs": r, "num_classes": len(r)} for i, r in enumerate(rows)]}
        case "POST", "/encode":
            return [{"embedding": fake.given((text,), True), "meta_info": {}} for text in body["text"]]
        case "POST", "/v1/rerank":
            return ranked(fake, body, False, "score")
    return None


def llama_cpp(fake: FakeServer, method: str, path: str, body: Any) -> Any:
    match method, path:
        case "GET", "/props":
            return {
                "default_generation_settings": {},
                "total_slots": 1,
                "model_path": "m.gguf",
                "build_info": "b8681-1",
            }
        case "GET", "/v1/models" | "/models":
            return {"object": "list", "data": [{"id": "m.gguf", "object": "model", "owned_by": "llamacpp"}]}
        case "POST", "/v1/rerank":
            return {"model": "m.gguf", "object": "list", "results": ranked(fake, body, True, "relevance_score")}
    return None


def infinity(fake: FakeServer, method: str, path: str, body: Any) -> Any:
    match method, path:
        case "GET", "/openapi.json":
            return {"openapi": "3.1.0", "info": {"title": "Infinity", "version": "0.0.77"}, "paths": {}}
        case "GET", "/models":
            model = {"id": "mine", "object": "model", "owned_by": "infinity", "capabilities": ["classify", "rerank"]}
            return {"data": [{**model, "id": "other", "capabilities": ["embed"]}, model], "object": "list"}
        case "POST", "/classify":
            assert body["model"] == "mine"
            return {"object": "classify", "data": [fake.named((text,), False) for text in body["input"]]}
        case "POST", "/rerank":
            return {"object": "rerank", "results": ranked(fake, body, body["raw_scores"], "relevance_score")}
    return None


def inputs(fake: FakeServer, method: str, path: str, body: Any) -> Any:
    """A server that hands `inputs` and `parameters` to a pipeline."""
    if method != "POST" or path not in ("", "/"):
        return None
    raw = body.get("parameters", {}).get("function_to_apply") == "none"
    texts = body["inputs"] if isinstance(body["inputs"], list) else [body["inputs"]]
    fake.limit(texts)
    pairs = [(text,) if isinstance(text, str) else (text["text"], text["text_pair"]) for text in texts]
    found = [fake.named(pair, raw) for pair in pairs]
    return found if isinstance(body["inputs"], list) else found[0]


def kserve(fake: FakeServer, method: str, path: str, body: Any) -> Any:
    """A server of the open inference protocol whose model ends in a tensor of floats."""
    match method, path:
        case "GET", "/v2":
            return {"name": "kserve", "version": "0.15.2", "extensions": ["model_repository_extension"]}
        case "GET", "/v2/models":
            return {"models": ["clf"]}
        case "GET", "/v2/models/clf":
            text = {"name": "text", "datatype": "BYTES", "shape": [-1]}
            return {"name": "clf", "inputs": [text], "outputs": []}
        case "POST", "/v2/models/clf/infer":
            (tensor,) = body["inputs"]
            assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("text", "BYTES", [len(tensor["data"])])
            rows = [fake.given((text,), False) for text in tensor["data"]]
            flat = [score for row in rows for score in row]
            output = {"name": "probabilities", "datatype": "FP32", "shape": [len(rows), len(rows[0])], "data": flat}
            return {"model_name": "clf", "outputs": [output]}
    return None


def mlserver(fake: FakeServer, method: str, path: str, body: Any) -> Any:
    """MLServer with its runtime for Hugging Face, which puts the JSON of the pipeline into strings."""
    match method, path:
        case "GET", "/v2":
            return {"name": "mlserver", "version": "1.7.0", "extensions": []}
        case "POST", "/v2/repository/index":
            return [{"name": "clf", "state": "READY", "reason": ""}]
        case "GET", "/v2/models/clf":
            return {"name": "clf", "platform": "", "inputs": [{"name": "args", "datatype": "BYTES", "shape": [-1]}]}
        case "POST", "/v2/models/clf/infer":
            sent = {tensor["name"]: tensor["data"] for tensor in body["inputs"]}
            assert body["inputs"][0]["parameters"] == {"content_type": "hg_json"}
            (texts,) = json.loads(sent["args"][0])
            raw = sent.get("function_to_apply") == ["none"]
            rows = [json.dumps(fake.named((text,), raw)[: sent["top_k"][0]]) for text in texts]
            return {"outputs": [{"name": "output", "datatype": "BYTES", "shape": [len(rows), 1], "data": rows}]}
    return None


Protocol = Callable[[FakeServer, str, str, Any], Any]
"""The payload of a server's answer to a method, a path and a body; None for what it doesn't know."""
_PROTOCOLS: dict[str, Protocol] = {
    "vllm": vllm, "tei": tei, "sglang": sglang, "llama-cpp": llama_cpp, "infinity": infinity, "inputs": inputs,
    "kserve": kserve, "mlserver": mlserver,
}  # fmt: skip


@contextmanager
def serve(
    protocol: str | Protocol,
    scores: Scores,
    labels: Sequence[str],
    *,
    prefix: str = "",
    log: list[Asked] | None = None,
    most_texts: int = 1000,
) -> Iterator[str]:
    """The URL of a fake server, while it runs; `log` receives its requests."""
    fake = FakeServer(scores, labels, most_texts)
    payload = _PROTOCOLS[protocol] if isinstance(protocol, str) else protocol

    def answer(handler: BaseHTTPRequestHandler, asked: Asked) -> None:
        path, found = asked.path.removeprefix(prefix), None
        if asked.path.startswith(prefix):
            try:
                found = payload(fake, asked.method, path.partition("?")[0], asked.body)
            except Refusal as refusal:
                return send_json(handler, refusal.payload, refusal.status)
        return send_json(handler, {"detail": "Not Found"}, 404) if found is None else send_json(handler, found)

    with serve_with(answer, log) as url:
        yield url + prefix


def send_json(handler: BaseHTTPRequestHandler, payload: Any, status: int = 200, **headers: str) -> None:
    """Answers with JSON."""
    send_bytes(handler, json.dumps(payload).encode(), status, **{"Content-Type": "application/json", **headers})


def send_bytes(handler: BaseHTTPRequestHandler, data: bytes, status: int = 200, **headers: str) -> None:
    """Answers with bytes."""
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(data)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(data)


Answer = Callable[[BaseHTTPRequestHandler, Asked], None]


def answer_paths(known: Mapping[str, Any]) -> Answer:
    """Answers each path with its JSON, and all others with an empty object."""
    return lambda handler, asked: send_json(handler, known.get(asked.path, {}))


@contextmanager
def serve_with(
    answer: Answer,
    log: list[Asked] | None = None,
    context: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """The URL of a server that answers every request with a function, while it runs; https with a context."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

        def handle_any(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = Asked(self.command, self.path, dict(self.headers), json.loads(data) if data else None)
            if log is not None:
                log.append(asked)
            try:
                answer(self, asked)
            except OSError:
                self.close_connection = True

        do_GET = do_POST = handle_any

        def log_message(self, *_: object) -> None:
            """Nothing is written."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
