"""Protocol of a server: harmless GET requests, and what each answer says."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from headscope.errors import HeadscopeError, NetworkError, Unsupported, UsageError
from headscope.shared.serving.asking import rows
from headscope.shared.serving.asking.address import ServerAddress, one_line
from headscope.shared.serving.asking.exchange import TOKEN_HINT, Exchange, ServerReply
from headscope.shared.serving.asking.protocols import ServerProtocol, protocol_names, ways_of

_PROBE_SECONDS = 10.0
_MOST_LABELS = 1_000_000
_OK, _REFUSALS = 200, (401, 403)
ServerFacts = dict[str, Any]


def find_protocol(server: ServerAddress, named: str | None = None) -> ServerProtocol:
    """Finds the protocol of a server: the one that is named, or the one that its answers to harmless requests fit.

    Raises UsageError for an unknown name, for a server that several protocols fit, and where a model must be named;
    Unsupported for a server that fits none or gives no scores; NetworkError where it can't be reached.
    """
    if named is not None:
        ways_of(named)
    with Exchange(server) as exchange:
        seen = _Answers(exchange, server)
        wanted = None if named is None else named.removesuffix("-pooling")
        found = {one.name: one for probe in _PROBES if (one := seen.by(probe, wanted)) is not None}
        if named is not None:
            protocol = found.get(wanted or "") or ServerProtocol(named, server.base, server.exact, server.model)
            return _complete_protocol(exchange, replace(protocol, name=named), seen)
        if not found:
            found = seen.as_pipeline()
        if len(found) > 1:
            raise UsageError(
                f"several protocols fit the server: {', '.join(sorted(found))}", "choose one with --protocol NAME"
            )
        if not found:
            raise seen.error()
        protocol = next(iter(found.values()))
        if protocol.name == "vllm" and server.endpoint == "/pooling":
            protocol = replace(protocol, name="vllm-pooling")
        return _complete_protocol(exchange, protocol, seen)


@dataclass(frozen=True, slots=True)
class Probe:
    """GET request, and the reader of its answer: the facts of its protocol, None where it isn't that server."""

    path: str
    protocol: str
    reads: Callable[[Any], ServerFacts | None]


def _read_tei(payload: Any) -> ServerFacts | None:
    kind = payload.get("model_type")
    if "model_id" not in payload or not isinstance(kind, dict) or not kind:
        return None
    if "embedding" in kind:
        raise Unsupported(
            "the server (Text Embeddings Inference) serves an embedding model, which gives no scores",
            "start it with a checkpoint whose architecture ends in ForSequenceClassification",
        )
    served = next(iter(kind.values()))
    most = payload.get("max_client_batch_size")
    return {
        "engine": "text-embeddings-inference",
        "version": payload.get("version"),
        "labels": _labels_in(served.get("id2label") if isinstance(served, dict) else None),
        "most_texts": most if type(most) is int and most > 0 else None,
        "dtype": dtype if (dtype := payload.get("model_dtype")) in ("float32", "float16", "bfloat16") else "",
    }


def _labels_in(id2label: Any) -> tuple[str, ...]:
    """Gives the labels in the order of their indices, () unless each has one."""
    if not isinstance(id2label, dict) or len(id2label) > _MOST_LABELS:
        return ()
    found = [id2label.get(str(index)) for index in range(len(id2label))]
    labels = tuple(label for label in found if isinstance(label, str))
    return labels if len(set(labels)) == len(found) else ()


def _reader_of_models(owner: str, engine: str) -> Callable[[Any], ServerFacts | None]:
    def reads(payload: Any) -> ServerFacts | None:
        data = payload.get("data")
        models = [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []
        if not any(one.get("owned_by") == owner for one in models):
            return None
        able = {name: one.get("capabilities") or () for one in models if isinstance(name := one.get("id"), str)}
        wanted = [name for kind in ("classify", "rerank") for name in able if kind in able[name]]
        rerankers = [name for name in able if "rerank" in able[name] and "classify" not in able[name]]
        return {"engine": engine, "model": [*wanted, *able, ""][0], "rerankers": rerankers}

    return reads


def _read_sglang(payload: Any) -> ServerFacts | None:
    return {"engine": "sglang"} if "model_path" in payload and "is_generation" in payload else None


def _read_llama_cpp(payload: Any) -> ServerFacts | None:
    build = payload.get("build_info")
    return {"engine": "llama-cpp", "version": build} if isinstance(build, str) else None


def _read_kserve(payload: Any) -> ServerFacts | None:
    name = payload.get("name")
    if not isinstance(name, str) or not isinstance(payload.get("extensions"), list):
        return None
    return {"engine": name.lower(), "version": payload.get("version")}


_PROBES = (
    Probe("/info", "tei", _read_tei),
    Probe("/v1/models", "vllm", _reader_of_models("vllm", "vllm")),
    Probe("/v1/models", "sglang", _reader_of_models("sglang", "sglang")),
    Probe("/v1/models", "llama-cpp", _reader_of_models("llamacpp", "llama-cpp")),
    Probe("/v1/models", "infinity", _reader_of_models("infinity", "infinity")),
    Probe("/models", "infinity", _reader_of_models("infinity", "infinity")),
    Probe("/model_info", "sglang", _read_sglang),
    Probe("/get_model_info", "sglang", _read_sglang),
    Probe("/props", "llama-cpp", _read_llama_cpp),
    Probe("/v2", "kserve", _read_kserve),
)
_VERSIONS = {"vllm": ("/version", ()), "sglang": ("/server_info", ()), "infinity": ("/openapi.json", ("info",))}
"""Where a server tells its version, if the probe didn't: a path, and the objects around the field."""


class _Answers:
    """Answers to the GET requests of one search."""

    def __init__(self, exchange: Exchange, server: ServerAddress) -> None:
        self.exchange, self.server = exchange, server
        self.replies: dict[str, ServerReply | HeadscopeError] = {}

    def reply(self, path: str) -> ServerReply | None:
        """Gives the answer to a GET, made once. Raises NetworkError where not even the first gets an answer."""
        if path not in self.replies:
            # A server that failed once is not retried for the other probes: they would take the time of all retries.
            works = all(isinstance(one, ServerReply) and one.status < 500 for one in self.replies.values())
            is_first, retries = not self.replies, None if works else 0
            try:
                self.replies[path] = self.exchange.get(self.server.base + path, retries, _PROBE_SECONDS)
            except HeadscopeError as err:
                if is_first and isinstance(err, NetworkError):
                    raise
                self.replies[path] = err
        found = self.replies[path]
        return found if isinstance(found, ServerReply) else None

    def object_at(self, path: str) -> dict[str, Any]:
        """Gives the JSON object at a path, empty where there is none."""
        found = self.reply(path)
        is_there = found is not None and found.status == _OK and isinstance(found.payload, dict)
        return found.payload if found is not None and is_there else {}

    def by(self, probe: Probe, wanted: str | None) -> ServerProtocol | None:
        """Gives the protocol that a probe's answer shows; only probes for the wanted one are made."""
        if wanted not in (None, probe.protocol):
            return None
        facts = probe.reads(self.object_at(probe.path))
        if facts is None:
            return None
        prefix = "/v1" if probe.protocol == "infinity" and probe.path.startswith("/v1") else ""
        facts["version"] = _version_in(facts)
        facts["model"] = self.server.model or facts.get("model", "")
        facts["is_reranker"] = facts["model"] in facts.pop("rerankers", ())
        facts["evidence"] = (f"GET {probe.path} is answered as {ways_of(probe.protocol).title} answers it",)
        return ServerProtocol(probe.protocol, self.server.base + prefix, self.server.exact, **facts)

    def as_pipeline(self) -> dict[str, ServerProtocol]:
        """Tries the plain form of pipelines: one text posted to the URL is answered with labels and scores."""
        try:
            body = {"inputs": "Hello", "parameters": {"top_k": None}}
            reply = self.exchange.post(self.server.exact, body)
            if reply.status in _REFUSALS:
                self.replies["(POST)"] = reply
                return {}
            rows.labeled_rows(reply.json(), 1)
        except HeadscopeError as err:
            self.replies["(POST)"] = err
            return {}
        evidence = ("POST {inputs: text} is answered with labels and scores",)
        return {"inputs": ServerProtocol("inputs", self.server.base, self.server.exact, evidence=evidence)}

    def error(self) -> HeadscopeError:
        """Makes the error for a server that fits no protocol."""
        tried = []
        for path, found in self.replies.items():
            told = found.message if isinstance(found, HeadscopeError) else f"{found.status}"
            told += f", {found.says}" if isinstance(found, ServerReply) and not found.is_json else ""
            tried.append(f"{path or '/'}: {told}")
        refused = any(isinstance(one, ServerReply) and one.status in _REFUSALS for one in self.replies.values())
        names = ", ".join(protocol_names())
        hint = f"{TOKEN_HINT}, or " if refused else ""
        return Unsupported(
            f"no protocol fits the server at {self.server.shown} ({'; '.join(tried)})",
            f"{hint}name the protocol with --protocol NAME ({names}); check the path of the URL",
        )


def _version_in(facts: ServerFacts) -> str:
    version = facts.get("version")
    return one_line(version) if isinstance(version, str) else ""


def _complete_protocol(exchange: Exchange, protocol: ServerProtocol, seen: _Answers) -> ServerProtocol:
    """Adds the version and the model that the server gives elsewhere."""
    if protocol.name == "kserve":
        return _with_model(exchange, protocol, seen)
    path, around = _VERSIONS.get(protocol.name.removesuffix("-pooling"), ("", ()))
    if protocol.version or not path:
        return protocol
    found: Any = seen.object_at(path)
    for name in around:
        found = found.get(name) if isinstance(found, dict) else None
    return replace(protocol, version=_version_in(found) if isinstance(found, dict) else "")


def _with_model(exchange: Exchange, protocol: ServerProtocol, seen: _Answers) -> ServerProtocol:
    """Adds a model and the name of its input for texts to the protocol of KServe."""
    model = seen.server.named_model or _only_model(exchange, protocol, seen)
    described = seen.object_at(f"/v2/models/{quote(model, safe='')}").get("inputs")
    inputs = [one for one in described if isinstance(one, dict)] if isinstance(described, list) else []
    names = [one.get("name") for one in inputs if one.get("datatype") == "BYTES"]
    default = "args" if protocol.engine == "mlserver" else "text"
    name = next((one for one in names if isinstance(one, str)), default)
    if inputs and not names:
        raise Unsupported(
            f"the model {one_line(model)} takes no texts", "ask a model whose input has the datatype BYTES"
        )
    return replace(protocol, model=model, text_input=name)


def _only_model(exchange: Exchange, protocol: ServerProtocol, seen: _Answers) -> str:
    listed: Any = seen.object_at("/v2/models").get("models")
    if not isinstance(listed, list):
        listed = exchange.post(f"{protocol.base}/v2/repository/index", {}).payload
    entries = [one.get("name") if isinstance(one, dict) else one for one in listed] if isinstance(listed, list) else []
    names = sorted({one for one in entries if isinstance(one, str) and one})
    if len(names) != 1:
        told = (
            f"several models: {', '.join(one_line(name) for name in names[:10])}" if names else "no list of its models"
        )
        raise UsageError(f"the server gives {told}", "name the model in the URL: .../v2/models/NAME")
    return names[0]
