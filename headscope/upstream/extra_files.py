"""Transformers: weight files that a class of configurations names beside the usual ones (since 5.23)."""

from headscope.upstream.sources import folder_of_package

_FIELD = "extra_files"


def has_extra_files(model_type: str) -> bool:
    """Whether the source of a model type's configuration names such files; nothing is imported for it."""
    folder, name = folder_of_package("transformers"), model_type.replace("-", "_")
    files = (folder / "models" / name).glob("configuration_*.py") if folder and name.isidentifier() else ()
    return any(_FIELD in file.read_text(encoding="utf-8", errors="replace") for file in files)


def extra_files_of(model_type: str, class_name: str | None = None) -> tuple[str, ...]:
    """The files of the class that `model_type` stands for, or of a named class: those of the class, which no
    `config.json` changes. Names that lead elsewhere are left out.
    """
    import transformers

    from headscope.upstream.transformers import config_classes

    own = getattr(getattr(transformers, class_name, None), "config_class", None) if class_name else None
    known = config_classes()  # its `get` doesn't import what it gives
    config_class = own or (known[model_type] if model_type in known else None)  # noqa: SIM401
    names = getattr(config_class, _FIELD, ())
    return tuple(name for name in names if name and not any(sign in name for sign in "/\\:\0"))
