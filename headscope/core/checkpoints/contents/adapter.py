"""PEFT adapters: read like separate checkpoints, then joined with the base model they were trained on."""

from collections.abc import Iterable
from dataclasses import replace

from headscope.core.facts import CheckpointKind, CheckpointManifest
from headscope.core.facts.counting import counted
from headscope.errors import HeadscopeError, Malformed, UsageError

ADAPTER_CONFIG = "adapter_config.json"
_NAMES = 4
_LONGEST = 200


def holds_adapter_alone(names: Iterable[str]) -> bool:
    """True if files of these names are only an adapter, maybe with the config.json of its base model beside it."""
    found = set(names)
    return ADAPTER_CONFIG in found and not any(name.startswith(("model.", "pytorch_model.")) for name in found)


def is_adapter(manifest: CheckpointManifest) -> bool:
    """True if the manifest is that of an adapter alone, whose configuration is `adapter_config.json`."""
    return manifest.kind is CheckpointKind.ADAPTER and manifest.adapter is None


def base_of(adapter: CheckpointManifest) -> tuple[str, str | None]:
    """Reads the reference and the revision of the base model that an adapter names.

    Raises Malformed if it names none.
    """
    config = adapter.config
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(base, str) or not base:
        raise Malformed(
            f"the adapter {adapter.reference} doesn't name its base model (base_model_name_or_path is "
            f"{str(base)[:40]!r})",
            _base_hint(adapter),
        )
    return base, revision if isinstance(revision, str) and revision else None


def without_base(adapter: CheckpointManifest, base: str, reason: HeadscopeError) -> HeadscopeError:
    """Builds the error for an adapter whose base cannot be read, of the kind of `reason`; it lists what it holds."""
    whole = [tensor.key for tensor in adapter.tensors if ".lora_" not in tensor.key]
    held = f"beside low-rank changes it holds {', '.join(whole[:_NAMES])}" if whole else "all of them low-rank changes"
    message = f"the base model {base} of the adapter {adapter.reference} cannot be read: {reason.message} "
    message += f"(the adapter was read: {counted(len(adapter.tensors), 'tensor')}; {held}"
    message += ", ...)" if len(whole) > _NAMES else ")"
    base = base if len(base) <= _LONGEST else f"{base[:_LONGEST]}..."
    # The user didn't type the name of the base model: a bad one is a fault of the file.
    kind = Malformed if isinstance(reason, UsageError) else type(reason)
    return kind(message, _base_hint(adapter))


def _base_hint(adapter: CheckpointManifest) -> str:
    named = "set base_model_name_or_path in adapter_config.json to the base model's folder"
    return f"give the base model: headscope inspect BASE --adapter {adapter.reference}; or {named}"


def joined_manifest(adapter: CheckpointManifest, base: CheckpointManifest) -> CheckpointManifest:
    """Joins an adapter with the manifest of its base model. Raises UsageError for a base that is an adapter."""
    if base.kind is CheckpointKind.ADAPTER:
        raise UsageError(
            f"{base.reference} is itself an adapter, so {adapter.reference} can't be applied to it",
            "give the base model that both were trained on",
        )
    return replace(
        base,
        reference=adapter.reference,
        kind=CheckpointKind.ADAPTER,
        revision=adapter.revision,
        commit=adapter.commit,
        bytes_read=base.bytes_read + adapter.bytes_read,
        requests=base.requests + adapter.requests,
        notices=(*base.notices, *adapter.notices),
        gaps=(*base.gaps, *adapter.gaps),
        files=(*base.files, *adapter.files),
        adapter=adapter,
        base=base.reference,
        base_revision=base.revision,
        base_commit=base.commit,
    )
