"""Vectors of all rows: from an earlier run if nothing changed, otherwise from a pass of the real model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod
from pathlib import Path

from headscope.core.facts.heads.tasks import Input
from headscope.core.model.quiet import quiet
from headscope.core.source.checkpoint import Checkpoint
from headscope.core.source.request import Progress, Request
from headscope.core.trace.record.base import base_module
from headscope.core.upstream.torch import on_meta
from headscope.core.words.words import bytes_of
from headscope.slices.probe.examined import new_names
from headscope.slices.probe.facts.data import Loading
from headscope.slices.probe.hidden.features import extract_features
from headscope.slices.probe.hidden.opening import InputSource, open_reader
from headscope.slices.probe.hidden.store import Features, clear_folder, keep_manifest, origin_of_vectors, read_kept
from headscope.slices.probe.plan import Plan


def source_of_vector(checkpoint: Checkpoint, classifier: str, plan: Plan, input: Input) -> InputSource:
    """Describes the model to read vectors from; its stored dtype is that of most of its values."""
    sizes: Counter[str] = Counter()
    for tensor in checkpoint.manifest.tensors:
        sizes[tensor.dtype] += prod(tensor.shape)
    stored = sizes.most_common(1)[0][0] if sizes else "float32"
    new = new_names(checkpoint.report)
    return InputSource(checkpoint.choice, checkpoint.location, stored, classifier, plan.seed, new, input)


def read_vectors(  # noqa: PLR0917  a step of `measure`, all of whose names it uses
    checkpoint: Checkpoint,
    source: InputSource,
    texts: tuple[tuple[str, ...], ...],
    plan: Plan,
    folder: Path,
    tell: Progress,
    *,
    is_kept: bool,
) -> Features:
    """Reads the vectors of an earlier run if nothing changed, otherwise computes them in a pass over the texts.

    The vectors are files in the folder; `is_kept` says whether another run may use them.
    """
    request, manifest = checkpoint.request, checkpoint.manifest
    if is_kept:
        options = _vector_options(request, source, plan)
        origin = origin_of_vectors(request, manifest, texts, options, are_files=source.input is not Input.TEXT)
        kept = read_kept(folder, origin)
        if not isinstance(kept, str):
            tell(f"using the vectors in {folder}")
            return kept
        clear_folder(folder)  # before the pass, so that an interrupted one leaves nothing that looks finished
    tell(f"loading {bytes_of(manifest.bytes_total)} of weights")
    reader = open_reader(source, plan.device, plan.dtype, texts)
    found = extract_features(reader, texts, folder, batch_size=plan.batch_size, tell=tell)
    if is_kept:
        keep_manifest(folder, origin, found)
        if kept:
            notes = (*found.seen.notes, f"the vectors in {folder} were computed again: {kept}")
            return replace(found, seen=replace(found.seen, notes=notes))
    return found


def _vector_options(request: Request, source: InputSource, plan: Plan) -> dict[str, str]:
    """Gives what the vectors depend on besides the checkpoint and the texts, by name."""
    return {
        "class": f"{source.choice.cls.__name__} {source.choice.config.num_labels} {source.classifier}",
        "remote code": str(request.trust_remote_code),
        "seed": str(plan.seed),
        "device": plan.device,
        "dtype": plan.dtype,
        "batch size": str(plan.batch_size),
    }


def loading_of(request: Request, source: InputSource) -> Loading:
    """Gives the arguments of `from_pretrained` for this model, and the path of its base model inside it."""
    place, choice = source.place, source.choice
    with quiet(), on_meta():
        model = choice.cls(choice.config)
    base = base_module(model)  # None if the class itself makes the hidden states
    return Loading(
        reference=place.reference,
        revision=place.commit or place.revision,
        subfolder=place.subfolder,
        model_class=choice.cls.__name__,
        encoder_decoder=bool(getattr(choice.config, "is_encoder_decoder", False)),
        remote_code=bool(request.trust_remote_code),
        input=source.input,
        base=next((path for path, module in model.named_modules() if module is base), ""),
    )
