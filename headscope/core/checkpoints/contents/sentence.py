"""The files that sentence-transformers adds to a checkpoint: `modules.json`, and its modules with their own tensors."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from headscope.core.checkpoints.contents.weights import FileStorage, read_weight_file
from headscope.core.checkpoints.formats.config_file import parse_list, parse_object
from headscope.core.facts.counting import few_of, list_of
from headscope.core.facts.stored.checkpoint import Shapes, TensorHeader
from headscope.core.facts.stored.location import is_path_inside
from headscope.core.facts.stored.sentence import ModuleTensor, PickledHead, SentenceModule, SentencePipeline
from headscope.errors import Malformed, NotFound, Unsupported

MODULES = "modules.json"
LIBRARY = "config_sentence_transformers.json"
SETFIT, SETFIT_HEAD = "config_setfit.json", "model_head.pkl"
_LENGTHS = (
    ("sentence_bert_config.json", "max_seq_length"),
    ("tokenizer_config.json", "model_max_length"),
)
"""Where the library finds the length at which it cuts texts: the first wins."""
_SAME_SIZE = {"Normalize", "Dropout"}
_FEW = 6
_MOST_MODULES = 50
_LONGEST = 10**9
_ENCODERS = ("sentence_transformers", "sbert_ce_default_activation_function")
"""Settings in `config.json` that a CrossEncoder leaves there, of before sentence-transformers 6 and 4."""


def read_sentence_pipeline(storage: FileStorage, config: Mapping[str, Any] | None = None) -> SentencePipeline | None:
    """Reads what follows the model in a sentence-transformers checkpoint; None if no file and no `config` mentions any.

    `reason` explains a missing file: it is beside the weights, and stops nothing.
    """
    if not storage.has(MODULES):
        return _pipeline_in_config(config or {})
    names = set(storage.names())
    found = SentencePipeline(
        (), classifier=SETFIT_HEAD if SETFIT_HEAD in names else "", head=_read_setfit_head(storage, names)
    )
    try:
        entries = _read_module_entries(parse_list(storage.read_text(MODULES), MODULES))
        kinds = [kind for kind, _ in entries]
        modules = [(kind.rpartition(".")[2], folder) for kind, folder in entries]
        found = replace(found, modules=tuple(name for name, _ in modules))
        # Reversed: of two modules of one class, the first keeps its folder.
        folders = dict(reversed(modules))
        if LIBRARY in names:
            found = _with_library(found, parse_object(storage.read_text(LIBRARY), LIBRARY))
        parts = []
        for kind, (name, folder) in zip(kinds, modules, strict=True):
            part = read_module(storage, name, folder)
            if not kind.startswith("sentence_transformers."):  # it may have the name of a class of the library
                part = replace(part, unknown=f"its class is {kind[:80]}, which is not of the library")
            parts.append(part)
        found = replace(found, parts=_with_faults_of_links(tuple(parts), found.library_class))
        if "LogitScore" in folders:
            found = replace(found, token_ids=tokens_of_module(settings_of_module(storage, folders["LogitScore"])))
        found = replace(found, max_length=_max_length(storage, names))
        if "Pooling" in folders:
            found = replace(found, pooling=modes_of(settings_of_module(storage, folders["Pooling"])))
    except (Malformed, NotFound) as err:
        # The model itself can still be examined, so the fault is a fact and not an error.
        return replace(found, reason=err.message)
    return found


def _read_setfit_head(files: FileStorage, names: set[str]) -> PickledHead | None:
    """Reads SetFit's classifier, with the labels that `config_setfit.json` gives its classes."""
    if SETFIT_HEAD not in names:
        return None
    from headscope.core.checkpoints.formats.pickle.scikit_pickle import read_pickled_head

    try:
        head = read_pickled_head(files.open(SETFIT_HEAD))
        settings = parse_object(files.read_text(SETFIT), SETFIT) if SETFIT in names else {}
    except (Malformed, NotFound, Unsupported) as err:
        return PickledHead("", reason=err.message)
    labels = settings.get("labels")
    is_named = isinstance(labels, list) and labels and all(isinstance(item, str) for item in labels)
    return _with_class_names(head, labels) if is_named and isinstance(labels, list) else head


def _with_class_names(head: PickledHead, names: list[str]) -> PickledHead:
    """Renames the classes as SetFit calls them: a number is a place in `names`, a text is the class itself."""
    own, fault = head.labels or tuple(map(str, range(len(names)))), ""
    if head.classes_are_texts:
        if own != tuple(names):
            fault = (
                f"{SETFIT} lists {list_of(names, _FEW)}, and the classifier scores {list_of(own, _FEW)}, in this order"
            )
        return replace(head, fault=fault)
    called: dict[str, str | None] = dict.fromkeys(own)
    for item in own:
        with suppress(IndexError, ValueError, OverflowError):
            # Python finds a name at a place that counts from the end too.
            called[item] = names[int(float(item[:_LONGEST_NUMBER]))]
    if None in called.values():
        lacking = [item for item, name in called.items() if name is None]
        fault = f"the classifier predicts {few_of(lacking)}, and {SETFIT} has {len(names)} labels, counted from 0"
    elif own != tuple(map(str, range(len(own)))):
        fault = f"the classifier predicts {few_of(own)}, which are not the first places of the labels in {SETFIT}"
    return replace(head, labels=tuple(called[item] or item for item in own), fault=fault)


_LONGEST_NUMBER = 20


def _pipeline_in_config(config: Mapping[str, Any]) -> SentencePipeline | None:
    """Reads a CrossEncoder of an older sentence-transformers, which leaves only its activation in `config.json`."""
    if not any(config.get(name) is not None for name in _ENCODERS):
        return None
    settings, older = (config.get(name) for name in _ENCODERS)
    activation = settings.get("activation_fn") if isinstance(settings, dict) else older
    named = activation if isinstance(activation, str) else ""
    return SentencePipeline((), library_class="CrossEncoder", activation=named.rpartition(".")[2])


def _with_faults_of_links(parts: tuple[SentenceModule, ...], library_class: str) -> tuple[SentenceModule, ...]:
    """Adds a fault to each module that does not take what those before it give."""
    found = list(parts)
    written: set[str] = set()
    for at, part in enumerate(parts):
        is_read = part.name in {"Pooling", "Dense", "LayerNorm", "Dropout"}
        if is_read and not part.unknown and not written & {part.reads, ""}:
            found[at] = replace(part, fault=part.fault or f"no module before it gives {part.reads}")
        written.add(part.writes)
        # Modules that keep the size are skipped: their own settings don't say it.
        given = next((item.output_size for item in reversed(parts[:at]) if item.name not in _SAME_SIZE), None)
        is_vector = part.name in {"Dense", "LayerNorm"} and not part.fault
        if is_vector and given is not None and part.input_size is not None and given != part.input_size:
            fault = f"it takes vectors of {part.input_size:,}, and the module before gives {given:,}"
            found[at] = replace(found[at], fault=found[at].fault or fault)
    # "" is the output of a module that headscope doesn't know, which may be scores.
    is_without = library_class == "CrossEncoder" and not written & {"", "scores"}
    if is_without and parts[-1].name != "LogitScore" and not found[-1].fault:
        found[-1] = replace(found[-1], fault="no module of the chain gives the scores of a CrossEncoder")
    return tuple(found)


def _with_library(found: SentencePipeline, settings: dict[str, Any]) -> SentencePipeline:
    """Adds what `config_sentence_transformers.json` says: the class that saved the checkpoint, and its activation."""
    name, activation = settings.get("model_type", ""), settings.get("activation_fn")
    if not isinstance(name, str) or not isinstance(activation, str | None):
        raise Malformed(f"model_type or activation_fn in {LIBRARY} is not a name", f"correct {LIBRARY}")
    return replace(found, library_class=name, activation=(activation or "").rpartition(".")[2])


def _max_length(storage: FileStorage, names: set[str]) -> int | None:
    """Reads the number of tokens at which texts are cut; None if no file has it."""
    for file, key in _LENGTHS:
        value = parse_object(storage.read_text(file), file).get(key) if file in names else None
        if type(value) is int and 0 < value < _LONGEST:
            return value
    return None


def _read_module_entries(entries: list[Any]) -> list[tuple[str, str]]:
    """Reads the class, by its path, and the folder of each module."""
    found = []
    for entry in entries[:_MOST_MODULES]:
        kind, folder = (entry.get("type"), entry.get("path", "")) if isinstance(entry, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(folder, str):
            raise Malformed(f"{MODULES} holds an entry without the type and the path of a module", f"correct {MODULES}")
        found.append((kind, folder))
    if not found or len(entries) > _MOST_MODULES:
        raise Malformed(f"{MODULES} lists {len(entries)} modules", f"correct {MODULES}")
    return found


_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_LARGEST_SIZE = 2**31
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Settings of before sentence-transformers 6, in the order in which it concatenates what they pool."""


_ReadModule = tuple[SentenceModule, Shapes | None]
"""A module as its settings describe it, and the shapes of the tensors that it loads; None if it loads none."""


def read_module(storage: FileStorage, name: str, folder: str) -> SentenceModule:
    """Reads one module of the chain, with its own weights.

    `fault` describes what doesn't fit, because the library raises an error for it. A module of an unknown class, or
    without settings that matter, gets only its name.
    """
    plain = SentenceModule(name, folder)
    if name not in _READERS:
        return replace(plain, unknown="headscope doesn't know what a module of this class computes")
    try:
        file, may_lack = _SETTINGS.get(name, ("config.json", False))
        is_there = not may_lack or storage.has(_path_in_folder(folder, file))
        module, shapes = _READERS[name](plain, settings_of_module(storage, folder, file) if is_there else {})
    except (Malformed, NotFound) as err:
        return replace(plain, fault=err.message, unknown=err.message)
    return module if shapes is None else _with_weights(storage, module, shapes)


_SETTINGS = {
    "Transformer": ("sentence_bert_config.json", True),
    "Normalize": ("config.json", True),
    "Dropout": ("config.json", True),
}
"""Where modules have their settings if not in `config.json`, and whether they need none."""


def settings_of_module(storage: FileStorage, folder: str, file: str = "config.json") -> dict[str, Any]:
    """Reads the settings of a module in a folder of the checkpoint. Raises Malformed for a folder outside of it."""
    name = _path_in_folder(folder, file)
    return parse_object(storage.read_text(name), name)


def modes_of(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Reads the pooling modes, as sentence-transformers reads its settings of every age.

    Raises Malformed if they are not names.
    """
    named = settings.get("pooling_mode")
    if named is not None:
        modes = (named,) if isinstance(named, str) else tuple(named) if isinstance(named, list) else ()
        if not modes or not all(isinstance(mode, str) for mode in modes):
            raise Malformed("pooling_mode of the pooling module is not a name", "correct its config.json")
        return modes
    return tuple(mode for key, mode in _OLD_MODES.items() if settings.get(key) is True) or ("mean",)


def tokens_of_module(settings: Mapping[str, Any]) -> tuple[int, ...]:
    """Reads the tokens of a `LogitScore`: for no, where it has one, then for yes. Raises Malformed without any."""
    wanted, other = settings.get("true_token_id"), settings.get("false_token_id")
    if type(wanted) is not int or not (other is None or type(other) is int) or min(wanted, other or 0) < 0:
        raise Malformed("LogitScore names no token ids (true_token_id, false_token_id)", "correct its config.json")
    return (wanted,) if other is None else (other, wanted)


def _path_in_folder(folder: str, file: str) -> str:
    """Gives the path of a module's file in the checkpoint. Raises Malformed for a folder outside of it."""
    if not is_path_inside(folder):
        raise Malformed(f"modules.json names the folder {folder[:80]!r}, which is not inside the checkpoint", "")
    return str(PurePosixPath(folder) / file)


def _with_weights(storage: FileStorage, module: SentenceModule, shapes: Shapes) -> SentenceModule:
    """Adds the tensors of the module's file, with a fault if they are not those that the module loads."""
    for file in _WEIGHTS:
        try:
            found = read_weight_file(storage, _path_in_folder(module.folder, file)).tensors
        except NotFound:
            continue
        except (Malformed, Unsupported) as err:
            return replace(module, fault=err.message)
        weights = tuple(ModuleTensor(tensor.key, tensor.shape, tensor.dtype) for tensor in found)
        return replace(module, weights=weights, file=file, fault="; ".join(_faults_of_weights(found, shapes)))
    return replace(module, fault=f"{module.folder} holds neither {' nor '.join(_WEIGHTS)}")


def _faults_of_weights(found: tuple[TensorHeader, ...], shapes: Shapes) -> Iterator[str]:
    stored = {tensor.key: tensor.shape for tensor in found}
    for name, shape in shapes.items():
        if name not in stored:
            yield f"its file lacks {name}"
        elif stored[name] != shape:
            yield f"its file has {name} as {_shape_text(stored[name])}, and its settings say {_shape_text(shape)}"
    more = [name for name in stored if name not in shapes]
    if more:
        yield f"its file has {', '.join(more[:3])}, which the module does not"


def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


def _read_size(settings: Mapping[str, Any], *names: str) -> int:
    """Reads a size by the first of its names that is there. Raises Malformed if it is not a size."""
    value = next((settings[name] for name in names if name in settings), None)
    # JSON's true is an int for isinstance.
    if type(value) is not int or not 0 < value < _LARGEST_SIZE:
        raise Malformed(f"{names[0]} in its settings is {str(value)[:40]!r}, not a size", "correct its config.json")
    return value


def _read_word(settings: Mapping[str, Any], name: str, default: str) -> str:
    value = settings.get(name, default)
    if not isinstance(value, str):
        raise Malformed(f"{name} in its settings is {str(value)[:40]!r}, not a name", "correct its config.json")
    return value


def _read_dense(module: SentenceModule, settings: Mapping[str, Any]) -> _ReadModule:
    size, out = _read_size(settings, "in_features"), _read_size(settings, "out_features")
    # The library imports this path, so a class of another package could compute anything.
    path = _read_word(settings, "activation_function", _TANH)
    activation = path.rpartition(".")[2]
    has_residual = settings.get("use_residual") is True
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (out, size)}
    if settings.get("bias", True):
        shapes["linear.bias"] = (out,)
    if has_residual and size != out:
        shapes["residual.weight"] = (out, size)
    detail = activation + (", plus a residual" if has_residual else "")
    module = _with_names(module, settings)
    read = replace(
        module, detail=detail, input_size=size, output_size=out, scores=module.writes == "scores", activation=path,
        has_bias="linear.bias" in shapes, has_residual=has_residual,
        unknown="" if path.startswith("torch.") else f"its activation is {path[:80]}, which is not of PyTorch",
    )  # fmt: skip
    return read, shapes


_TANH, _VECTOR, _TOKENS = "torch.nn.modules.activation.Tanh", "sentence_embedding", "token_embeddings"


def _with_names(module: SentenceModule, settings: Mapping[str, Any]) -> SentenceModule:
    """Adds the names under which the module reads its input and writes its output."""
    reads = _read_word(settings, "module_input_name", _VECTOR)
    is_same = settings.get("module_output_name") is None
    return replace(module, reads=reads, writes=reads if is_same else _read_word(settings, "module_output_name", ""))


def _read_transformer(module: SentenceModule, settings: Mapping[str, Any]) -> _ReadModule:
    """Reads the base model: what the library takes of its output for a text, and under which name."""
    modality, task = settings.get("modality_config"), settings.get("transformer_task", "feature-extraction")
    text = modality.get("text") if isinstance(modality, dict) else {"method_output_name": "last_hidden_state"}
    output = text.get("method_output_name") if isinstance(text, dict) else None
    output = output[0] if isinstance(output, list) and len(output) == 1 else output
    given = settings.get("config_kwargs", settings.get("config_args")) or {}
    unknown = ""
    if task != "feature-extraction" or output not in ("last_hidden_state", "pooler_output"):
        unknown = f"it gives {str(output)[:40]} of a model for {str(task)[:40]}"
    elif not isinstance(given, dict) or given.keys() - {"trust_remote_code"}:
        unknown = "its settings change config.json (config_kwargs)"
    reads, writes = str(output)[:40], _read_word(settings, "module_output_name", _TOKENS)
    return replace(module, reads=reads, writes=writes, unknown=unknown), None


def _read_normalize(module: SentenceModule, settings: Mapping[str, Any]) -> _ReadModule:
    return _with_names(module, settings), None


def _read_dropout(module: SentenceModule, settings: Mapping[str, Any]) -> _ReadModule:
    share = settings.get("dropout", _DROPOUT)
    if type(share) not in (int, float) or not 0 <= share <= 1:
        raise Malformed(f"dropout in its settings is {str(share)[:40]!r}, not a share", "correct its config.json")
    return replace(module, reads=_VECTOR, writes=_VECTOR, dropout=float(share)), None


_DROPOUT = 0.2
"""What the library takes where the settings say nothing."""


def _read_layer_norm(module: SentenceModule, settings: Mapping[str, Any]) -> _ReadModule:
    size = _read_size(settings, "dimension")
    read = replace(module, input_size=size, output_size=size, reads=_VECTOR, writes=_VECTOR)
    return read, {"norm.weight": (size,), "norm.bias": (size,)}


def _read_pooling(module: SentenceModule, settings: Mapping[str, Any]) -> _ReadModule:
    modes = modes_of(settings)
    unknown = (
        "" if set(modes) <= set(_OLD_MODES.values()) else f"headscope doesn't know how it pools by {modes[0][:40]}"
    )
    module = replace(module, modes=modes, reads=_TOKENS, writes=_VECTOR, unknown=unknown)
    names = ("embedding_dimension", "word_embedding_dimension")
    if not any(name in settings for name in names):
        return replace(module, detail=", ".join(modes)), None
    size = _read_size(settings, *names)
    return replace(module, detail=", ".join(modes), input_size=size, output_size=size * len(modes)), None


def _read_splade(module: SentenceModule, settings: Mapping[str, Any]) -> _ReadModule:
    function = "log1p(relu)" if _read_word(settings, "activation_function", "relu") == "relu" else "log1p(log1p(relu))"
    return replace(module, detail=f"{_read_word(settings, 'pooling_strategy', 'max')} of {function}"), None


def _read_logit_score(module: SentenceModule, settings: Mapping[str, Any]) -> _ReadModule:
    ids = tokens_of_module(settings)
    return replace(module, detail=" - ".join(f"token {number}" for number in reversed(ids)), output_size=1), None


def _read_sparse_auto_encoder(module: SentenceModule, settings: Mapping[str, Any]) -> _ReadModule:
    size, out = _read_size(settings, "input_dim"), _read_size(settings, "hidden_dim")
    detail = f"the {_read_size(settings, 'k')} largest"
    return replace(module, detail=detail, input_size=size, output_size=out), None


_READERS: dict[str, Callable[[SentenceModule, Mapping[str, Any]], _ReadModule]] = {
    "Transformer": _read_transformer,
    "Normalize": _read_normalize,
    "Dropout": _read_dropout,
    "Dense": _read_dense,
    "LayerNorm": _read_layer_norm,
    "Pooling": _read_pooling,
    "SpladePooling": _read_splade,
    "LogitScore": _read_logit_score,
    "SparseAutoEncoder": _read_sparse_auto_encoder,
}
