"""Requests for the scores of texts, for each server: endpoints, bodies, and the form of the answers.

Read in vLLM 0.32.0, Text Embeddings Inference 0d124dc (after 1.9.3), SGLang 0.5.23, Infinity 0.0.77, MLServer a325e52
(1.7.0.dev0), and the server of llama.cpp at 2f69034.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from headscope.errors import UsageError, did_you_mean
from headscope.shared.serving.answers import Answer, TextOrPair
from headscope.shared.serving.asking import rows


@dataclass(frozen=True, slots=True)
class ServerProtocol:
    """Protocol of one server, as it was found.

    `base` is what paths are appended to, `exact` the URL as given. `model` is the name to ask under, "" to leave it
    out. `labels` are the classes in their order, () where the server doesn't tell. `most_texts` is the largest batch
    that the server says it takes, `dtype` the precision that it says it computes in. `is_reranker`: it says that the
    model takes pairs only. `evidence` says what was found where.
    """

    name: str
    base: str
    exact: str
    model: str = ""
    engine: str = ""
    version: str = ""
    labels: tuple[str, ...] = ()
    text_input: str = "text"
    most_texts: int | None = None
    dtype: str = ""
    is_reranker: bool = False
    evidence: tuple[str, ...] = ()

    @property
    def can_score_texts(self) -> bool:
        """True if the server scores texts alone."""
        return _WAYS[self.name].texts is not None and not self.is_reranker

    @property
    def can_score_pairs(self) -> bool:
        """True if the server scores pairs of texts."""
        return _WAYS[self.name].pairs is not None

    @property
    def is_pipeline(self) -> bool:
        """True if the model is a pipeline of MLServer's runtime for Hugging Face, which takes options."""
        return self.engine == "mlserver" and self.text_input == "args"

    def can_give_logits(self, pairs: bool = False) -> bool:
        """True if scores can be requested without the function that the engine applies to them."""
        way = _WAYS[self.name].pairs if pairs else _WAYS[self.name].texts
        if self.name == "kserve":
            return not pairs and self.is_pipeline
        return way is not None and way.has_logits


@dataclass(frozen=True, slots=True)
class Way:
    """Kind of request: its path, its body, and how its answer is read.

    With `one_query`, a request takes pairs only that share their first text.
    """

    path: Callable[[ServerProtocol, bool], str]
    body: Callable[[ServerProtocol, Sequence[TextOrPair], bool], dict[str, Any]]
    read: Callable[[Any, int], list[Answer]]
    has_logits: bool
    one_query: bool = False


@dataclass(frozen=True, slots=True)
class Ways:
    """Requests that a protocol has, with a sentence where texts or pairs can't be scored.

    `lists_may_fail` says that a server of this kind may refuse several texts in a request with any error. `instead`
    is the protocol to go on with where a text is a bad request. `dtype` is the coarsest that the server computes in,
    whatever its files hold, "" where that depends on them.
    """

    title: str
    texts: Way | None
    pairs: Way | None
    refusal: str = ""
    lists_may_fail: bool = False
    note: str = ""
    instead: str = ""
    dtype: str = ""


def protocol_names() -> tuple[str, ...]:
    """Lists the names of the protocols, in order."""
    return tuple(sorted(_WAYS))


def ways_of(name: str) -> Ways:
    """Gives the requests of a protocol. Raises UsageError for an unknown name."""
    if name not in _WAYS:
        names = protocol_names()
        raise UsageError(f"no such protocol: {name!r}", did_you_mean(name, names, f"protocols: {', '.join(names)}"))
    return _WAYS[name]


def _path_at(path: str) -> Callable[[ServerProtocol, bool], str]:
    return lambda protocol, raw: f"{protocol.base}{path}"


def _model_field(protocol: ServerProtocol) -> dict[str, Any]:
    return {"model": protocol.model} if protocol.model else {}


def _vllm_activation(raw: bool) -> dict[str, Any]:
    return {"use_activation": False} if raw else {}


def _vllm_texts(protocol: ServerProtocol, texts: Sequence[TextOrPair], raw: bool, **more: Any) -> dict[str, Any]:
    return {**_model_field(protocol), "input": [text for (text,) in texts], **_vllm_activation(raw), **more}


def _vllm_pairs(protocol: ServerProtocol, texts: Sequence[TextOrPair], raw: bool) -> dict[str, Any]:
    first, second = ([pair[at] for pair in texts] for at in (0, 1))
    return {**_model_field(protocol), "text_1": first, "text_2": second, **_vllm_activation(raw)}


def _tei_inputs(protocol: ServerProtocol, texts: Sequence[TextOrPair], raw: bool) -> dict[str, Any]:
    return {"inputs": [list(text) for text in texts], "raw_scores": raw, "truncate": True}


def _sglang_texts(protocol: ServerProtocol, texts: Sequence[TextOrPair], raw: bool) -> dict[str, Any]:
    found = [text for (text,) in texts]
    return {"text": found} if raw else {**_model_field(protocol), "input": found}


def _read_sglang(payload: Any, count: int) -> list[Answer]:
    if isinstance(payload, dict) and "data" in payload:
        return rows.probability_rows(payload, count)
    return rows.vectors(payload, count, "", "embedding")


def _query_and_documents(
    protocol: ServerProtocol, texts: Sequence[TextOrPair], raw: bool, **more: Any
) -> dict[str, Any]:
    return {**_model_field(protocol), "query": texts[0][0], "documents": [second for _, second in texts], **more}


def _infinity_pairs(protocol: ServerProtocol, pairs: Sequence[TextOrPair], raw: bool) -> dict[str, Any]:
    return _query_and_documents(protocol, pairs, raw, raw_scores=raw)


def _read_infinity(payload: Any, count: int) -> list[Answer]:
    return [rows.labeled_row(row, False) for row in rows.row_list(rows.field_of(payload, "data", list), count)]


def _pipeline_body(protocol: ServerProtocol, texts: Sequence[TextOrPair], raw: bool) -> dict[str, Any]:
    inputs: list[Any] = [text[0] if len(text) == 1 else {"text": text[0], "text_pair": text[1]} for text in texts]
    parameters = {"top_k": None} | ({"function_to_apply": "none"} if raw else {})
    return {"inputs": inputs if len(inputs) > 1 else inputs[0], "parameters": parameters}


_ALL_CLASSES = 1_000_000
"""A top_k above any count of classes: MLServer can't be sent the null that stands for all."""


def _kserve_body(protocol: ServerProtocol, texts: Sequence[TextOrPair], raw: bool) -> dict[str, Any]:
    data = [text for (text,) in texts]
    if not protocol.is_pipeline:
        return {"inputs": [_named_tensor(protocol.text_input, "BYTES", data, "str")]}
    inputs = [  # the arguments of a call: the pipeline takes a list as one of them, and several texts as none
        _named_tensor(protocol.text_input, "BYTES", [json.dumps([data])], "hg_json"),
        _named_tensor("top_k", "INT32", [_ALL_CLASSES], "raw"),
    ]
    return {"inputs": inputs + ([_named_tensor("function_to_apply", "BYTES", ["none"], "raw")] if raw else [])}


def _named_tensor(name: str, datatype: str, data: list[Any], content_type: str) -> dict[str, Any]:
    return {
        "name": name, "shape": [len(data)], "datatype": datatype, "data": data,
        "parameters": {"content_type": content_type},
    }  # fmt: skip


def _kserve_path(protocol: ServerProtocol, raw: bool) -> str:
    return f"{protocol.base}/v2/models/{quote(protocol.model, safe='')}/infer"


_VLLM_PAIRS = Way(_path_at("/score"), _vllm_pairs, rows.single_scores, True)
_RELEVANCE = partial(rows.single_scores, rows="results", score="relevance_score")
_POOLED = partial(rows.vectors, rows="data", name="data")
_LISTED = partial(rows.single_scores, rows="")
_CUT = "the server cuts texts that are too long"
_WAYS = {
    "vllm": Ways("vLLM", Way(_path_at("/classify"), _vllm_texts, rows.probability_rows, True), _VLLM_PAIRS,
        instead="vllm-pooling"),
    "vllm-pooling": Ways(
        "vLLM's /pooling",
        Way(_path_at("/pooling"), partial(_vllm_texts, task="classify"), _POOLED, True),
        _VLLM_PAIRS,
    ),
    "tei": Ways(
        "Text Embeddings Inference",
        Way(_path_at("/predict"), _tei_inputs, rows.labeled_rows, True),
        Way(_path_at("/predict"), _tei_inputs, rows.labeled_rows, True),
        note=_CUT,
    ),
    "sglang": Ways(
        "SGLang",
        Way(lambda found, raw: f"{found.base}/{'encode' if raw else 'v1/classify'}", _sglang_texts, _read_sglang, True),
        Way(_path_at("/v1/rerank"), partial(_query_and_documents, return_documents=False), _LISTED, False, True),
    ),
    "llama-cpp": Ways(
        "llama.cpp",
        None,
        Way(_path_at("/v1/rerank"), _query_and_documents, _RELEVANCE, True, True),
        "llama.cpp's server gives scores to pairs only, and needs the option --reranking",
        dtype="float16",  # its GELU is a table
    ),
    "infinity": Ways(
        "Infinity",
        Way(_path_at("/classify"), _vllm_texts, _read_infinity, False),
        Way(_path_at("/rerank"), _infinity_pairs, _RELEVANCE, True, True),
        note=_CUT,
    ),
    "inputs": Ways(
        "a pipeline of Transformers",
        Way(lambda found, raw: found.exact, _pipeline_body, rows.labeled_rows, True),
        Way(lambda found, raw: found.exact, _pipeline_body, rows.labeled_rows, True),
        lists_may_fail=True,
    ),
    "kserve": Ways(
        "KServe V2",
        Way(_kserve_path, _kserve_body, rows.tensor_rows, True),
        None,
        "the protocol of KServe has no form for pairs of texts",
    ),
}  # fmt: skip
