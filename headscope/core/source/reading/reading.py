"""The manifest of the checkpoint that a request names, and where its files can be loaded from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.core.facts import (
    CheckpointKind,
    CheckpointManifest,
    DecisionHead,
    Gap,
    GapTopic,
    ScoreHead,
    SentencePipeline,
    Task,
    TensorHeader,
    WeightFile,
    WeightsFormat,
)
from headscope.core.facts.counting import few_of, verb
from headscope.core.facts.stored.location import Location
from headscope.core.source.reading.default_class import (
    is_class_name,
    read_default_class,
    with_nearest_class,
    without_checkpoint,
)
from headscope.core.source.request import Progress, Request
from headscope.errors import NetworkError, NotFound, Offline, WithoutConfig

if TYPE_CHECKING:
    from headscope.core.checkpoints.checkpoint_files import FileReader
    from headscope.core.checkpoints.contents.tokenizer_file import FirstToken


def read_checkpoint(
    request: Request, progress: Progress | None, *, takes_class: bool = False, joins_chain: bool = True
) -> CheckpointManifest:
    """Reads the manifest of the checkpoint that a request names, or of a class of Transformers with `takes_class`.

    The weights of a chain of sentence-transformers are among its tensors if the request means the chain, unless
    `joins_chain` is false. Raises UsageError for a class where weights are needed, and otherwise what `read_manifest`
    raises, with more advice.
    """
    from headscope.core.checkpoints.reading import read_manifest

    if is_class_name(request):
        if not takes_class:
            raise without_checkpoint(request.reference)
        return read_default_class(request)
    try:
        manifest = read_manifest(request.location, adapter=request.adapter, progress=progress)
    except WithoutConfig as err:
        from headscope.core.source.reading.without_config import with_proposals

        raise with_proposals(err) from err
    except (NotFound, Offline, NetworkError) as err:
        raise with_nearest_class(err, request.reference) from err
    files = _open_folder(request.location) if manifest.kind is CheckpointKind.LOCAL else None
    manifest = _with_extra_files(request, _with_decision(request, manifest, files), files)
    whole = _with_notices(_with_value_head(request, manifest, files), files)
    return _with_chain(request, whole) if joins_chain else whole


def _open_folder(place: Location) -> FileReader | None:
    """Opens the files of a folder; None for a single file."""
    from headscope.core.checkpoints.checkpoint_files import open_sidecar

    return open_sidecar(place) if Path(place.reference).expanduser().is_dir() else None


def chain_of(request: Request, manifest: CheckpointManifest) -> SentencePipeline | None:
    """Gives the sentence-transformers modules that make the result; None if the request wants another head.

    A request that names the chain's own task or its own number of classes still means the chain; an embedding has
    neither.
    """
    pipeline = manifest.sentence
    if pipeline is None or not pipeline.chain or manifest.adapter is not None:
        return None
    if request.tokens or request.model_class is not None or request.trust_remote_code:
        return None
    count = pipeline.score_count
    own = (None, Task.SEQUENCE_CLASSIFICATION.value) if count else (None,)
    is_other = request.num_labels not in (None, count) or len(request.labels) not in (0, count)
    return None if is_other or request.task not in own else pipeline


def score_head_of(request: Request, manifest: CheckpointManifest) -> ScoreHead | None:
    """Gives the head of another library that makes the scores; None if it is unknown, or the request wants another."""
    from headscope.core.checkpoints.score_heads import score_heads_of

    heads = score_heads_of(manifest.tensors, manifest.config)
    is_asked = request.tokens or request.trust_remote_code or (request.model_class or request.task) is not None
    if is_asked or len(heads) != 1 or heads[0].input_size is None or "." in heads[0].name:
        return None
    count = heads[0].scores
    is_other = request.num_labels not in (None, count) or len(request.labels) not in (0, count)
    return None if is_other else heads[0]


def _with_chain(request: Request, manifest: CheckpointManifest) -> CheckpointManifest:
    """Adds the tensors of the chain's modules, under the names that they have in the chain's class."""
    chain = chain_of(request, manifest)
    if chain is None:
        return manifest
    stored = [part for part in chain.chain[1:] if part.file]
    more = tuple(
        TensorHeader(f"{part.folder}.{tensor.name}", tensor.dtype, tensor.shape, f"{part.folder}/{part.file}")
        for part in stored
        for tensor in part.weights
    )
    files = (WeightFile(f"{part.folder}/{part.file}") for part in stored)
    return replace(manifest, tensors=(*manifest.tensors, *more), files=(*manifest.files, *files))


def _with_notices(manifest: CheckpointManifest, files: FileReader | None) -> CheckpointManifest:
    """Adds the notices of a folder: headscope edited it, or another file names its classes.

    An adapter beside whole weights is a gap: Transformers puts it on them, and if it was merged already, it would count
    twice in the scores.
    """
    if files is None:
        return manifest
    from headscope.core.checkpoints.contents.adapter import ADAPTER_CONFIG
    from headscope.core.checkpoints.edit_record import edit_notice
    from headscope.core.checkpoints.score_heads import labels_notice

    found = (edit_notice(files, manifest), labels_notice(files, manifest.config))
    gaps = [_ADAPTER_BESIDE] if files.has(ADAPTER_CONFIG) and manifest.tensors else []
    notices = (*manifest.notices, *filter(None, found))
    return replace(manifest, notices=notices, gaps=(*manifest.gaps, *gaps))


_ADAPTER_BESIDE = Gap(
    GapTopic.CHECKPOINT,
    "an adapter (adapter_config.json) is beside the model's own weights. Transformers puts it on them, and headscope "
    "doesn't know whether they are merged with it already: if they are, take it out of the folder; if not, keep both "
    "in separate folders",
)


def _with_extra_files(request: Request, manifest: CheckpointManifest, files: FileReader | None) -> CheckpointManifest:
    """Adds the tensors of the files that the configuration's class names beside the weights.

    Only a folder with further safetensors files is looked at, so Transformers is imported for few.
    """
    from headscope.core.upstream.sources import has_extra_files

    model_type, is_hub = manifest.config.get("model_type"), manifest.kind is CheckpointKind.HUB
    if manifest.format is not WeightsFormat.SAFETENSORS or manifest.adapter is not None or not (is_hub or files):
        return manifest
    if not isinstance(model_type, str) or (is_hub and not has_extra_files(model_type)):  # a listing costs a request
        return manifest
    from headscope.core.checkpoints.checkpoint_files import open_sidecar

    at_commit = replace(request.location, revision=manifest.revision, commit=manifest.commit)
    sidecar = files or open_sidecar(at_commit)
    known = {file.name for file in manifest.files}
    others = {name for name in sidecar.names() if name.endswith(".safetensors")} - known if sidecar is not None else ()
    if not others:
        return manifest
    from headscope.core.checkpoints.contents.weights import with_weight_file
    from headscope.core.facts.stored.checkpoint import DECISION_CLASS
    from headscope.core.upstream.transformers import extra_files_of  # imports Transformers

    named = request.model_class or (DECISION_CLASS if manifest.decision is not None else None)
    for name in extra_files_of(model_type, named):
        if sidecar is not None and name in others:
            with sidecar.reaching():
                manifest = with_weight_file(manifest, sidecar.storage, name)
    return manifest


def _with_decision(request: Request, manifest: CheckpointManifest, files: FileReader | None) -> CheckpointManifest:
    """Adds the head of a decision model to the manifest of a folder, if its files say that it is one."""
    if files is None:
        return manifest
    from headscope.core.checkpoints.contents.adapter import ADAPTER_CONFIG
    from headscope.core.checkpoints.decision import read_decision_head, refuse_decision_files

    found = read_decision_head(files, manifest.config)
    if found is None and not _names_its_head(request):
        refuse_decision_files(files, manifest.config)
    if found is None:
        return manifest
    adapter = Path(request.reference) / (request.location.subfolder or "") / _ADAPTER_FOLDER / ADAPTER_CONFIG
    return replace(manifest, decision=replace(found, adapter=_ADAPTER_FOLDER if adapter.is_file() else ""))


_ADAPTER_FOLDER = "adapter"
"""The folder of the adapter that Transformers' pipeline puts on a decision model."""


def decision_of(request: Request, manifest: CheckpointManifest) -> DecisionHead | None:
    """Gives the head of a decision model that makes the scores; None if the request wants another head."""
    return None if _names_its_head(request) else manifest.decision


def _names_its_head(request: Request) -> bool:
    """True if a request says which head it wants."""
    asked = (request.tokens, request.trust_remote_code, request.model_class, request.task, request.num_labels)
    return any((*asked, request.labels))


def _with_value_head(request: Request, manifest: CheckpointManifest, files: FileReader | None) -> CheckpointManifest:
    """Adds the tensors of a value head beside the weights or the adapter of a folder."""
    sidecar = files
    if manifest.kind is CheckpointKind.ADAPTER:
        sidecar = _open_folder(request.location if request.adapter is None else Location(request.adapter))
    if sidecar is None:
        return manifest
    from headscope.core.checkpoints.contents.weights import with_weight_file
    from headscope.core.checkpoints.score_heads import VALUE_HEAD_FILES

    name = next(filter(sidecar.has, VALUE_HEAD_FILES), "")
    if not name or any(file.name == name for file in manifest.files):
        return manifest
    with sidecar.reaching():
        whole = with_weight_file(manifest, sidecar.storage, name)
    own = {tensor.key for tensor in manifest.tensors}
    twice = [item.key for item in whole.tensors if item.file == name and item.key in own]
    notice = f"{few_of(twice)} {verb(len(twice))} in two files; those of {name} are shown" if twice else ""
    return replace(whole, notices=(*whole.notices, *filter(None, [notice])))


def trusted_code(request: Request, manifest: CheckpointManifest) -> Location | None:
    """Gives where the repository's own code may run from, if the user trusts it and it is at hand."""
    if not request.trust_remote_code or manifest.kind not in (CheckpointKind.LOCAL, CheckpointKind.HUB):
        return None
    return loadable(request, manifest)


def loadable(request: Request, manifest: CheckpointManifest) -> Location:
    """Gives a request's location as `from_pretrained` takes it: a folder or a Hub ID, at the examined commit."""
    from headscope.core.checkpoints.reference import HubReference, parse_reference

    found = parse_reference(request.reference)
    at_commit = replace(request.location, revision=manifest.revision, commit=manifest.commit)
    if isinstance(found, HubReference):
        return replace(at_commit, reference=found.repo)
    path = Path(request.reference)
    return replace(at_commit, reference=str(path if path.is_dir() else path.parent))


def in_local_folder(request: Request) -> Request:
    """Points a request at the folder in the Hub's cache, if the checkpoint is there; otherwise returns it as it is."""
    from headscope.core.checkpoints.contents.adapter import ADAPTER_CONFIG
    from headscope.core.checkpoints.reference import HubReference, parse_reference
    from headscope.core.upstream.hub import cached_file

    found = parse_reference(request.reference)
    if not isinstance(found, HubReference):
        return request
    revision = found.revision or request.location.revision
    cache = request.location.hub.cache_dir
    files = (cached_file(found.repo, name, revision, cache) for name in ("config.json", ADAPTER_CONFIG))
    folder = next((file.parent for file in files if file is not None), None)
    return request if folder is None else replace(request, location=replace(request.location, reference=str(folder)))


def base_of_adapter(request: Request, manifest: CheckpointManifest) -> Request:
    """Builds the request for the base model of an adapter."""
    place = Location(manifest.base, manifest.base_revision, hub=request.location.hub)
    return replace(request, location=place, adapter=None)


def own_first_token(request: Request, manifest: CheckpointManifest) -> FirstToken | None:
    """Reads what the checkpoint's own tokenizer puts first; None from the Hub, where it would cost a request."""
    if manifest.kind is not CheckpointKind.LOCAL or request.adapter is not None:
        return None
    from headscope.core.checkpoints.contents.tokenizer_file import read_first_token

    place = loadable(request, manifest)
    return read_first_token(Path(place.reference, place.subfolder or ""))


WITHOUT_WEIGHTS = {
    CheckpointKind.ADAPTER: "a PEFT adapter, which headscope does not load into its base model",
    CheckpointKind.SNAPSHOT: "a snapshot, which holds no weights",
    CheckpointKind.CLASS: "a class of Transformers, which holds no weights",
}
"""The kinds of checkpoints whose weights are not run, and why."""
