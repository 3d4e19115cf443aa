"""Code that cures a finding, for the checkpoint that was checked: it changes what is wrong, and leaves all else."""

import json

from headscope.checks.facts import Subject


def setting_code(subject: Subject, name: str, value: object) -> str:
    """Writes Python code that sets a field of tokenizer_config.json; "" where no folder may be changed."""
    # Not `save_pretrained`: it writes all of the file in the form of the installed version, which others may not read.
    return _code_of(subject, {"tokenizer_config.json": {name: value}})


def length_code(subject: Subject, length: int) -> str:
    """Writes Python code that sets where the tokenizer cuts texts; "" where another library has its own limit."""
    has_own = subject.report.checkpoint.sentence_transformers is not None
    return "" if has_own else setting_code(subject, "model_max_length", length)


def padding_code(subject: Subject) -> str:
    """Writes Python code that names the padding in both files; "" where the token or its id isn't known.

    Without a padding token, texts are padded with the end token, as people do.
    """
    tokens = {item.role: item for item in subject.tokenizer.tokens} if subject.tokenizer is not None else {}
    found = tokens.get("pad") or tokens.get("eos")
    if found is None or found.id is None or not _has_row(subject, found.id):
        return ""
    changes: dict[str, dict[str, object]] = {"config.json": {"pad_token_id": found.id}}
    if "pad" not in tokens:
        changes["tokenizer_config.json"] = {"pad_token": found.token}
    return _code_of(subject, changes)


def config_code(subject: Subject, **fields: object) -> str:
    """Writes Python code that sets fields of config.json; "" where no folder may be changed."""
    return _code_of(subject, {"config.json": fields}, part="")


def token_id_code(subject: Subject, field: str, number: int | None) -> str:
    """Writes Python code that sets a token's id in config.json; "" where the id isn't known."""
    is_usable = number is not None and _has_row(subject, number)
    return _code_of(subject, {"config.json": {field: number}}) if is_usable else ""


def _has_row(subject: Subject, token_id: int) -> bool:
    """True if the embeddings have a row for a token; a pad token beyond them fails the load itself."""
    rows = subject.built.embedding_rows or subject.built.vocab_size
    return rows is None or token_id < rows


def unpadded_code(subject: Subject) -> str:
    """Writes Python code that leaves padding out of tokenizer.json, as it is before the first padded batch."""
    return _code_of(subject, {"tokenizer.json": {"padding": None}})


def renaming_code(subject: Subject, names: dict[str, str]) -> str:
    """Writes Python code that gives tensors new names; "" for weights in several files, or with an index of names."""
    file = _weight_file(subject, ".safetensors")
    if file != "model.safetensors" or not names:
        return ""
    lines = [
        "import os, pathlib",
        "from safetensors.torch import load_file, save_file",
        f"file = pathlib.Path({subject.folder!r}) / {file!r}",
        "state = load_file(file)",
        *(f"state[{new!r}] = state.pop({old!r})" for old, new in names.items()),
        "save_file(state, f'{file}.new', metadata={'format': 'pt'})",
        "os.replace(f'{file}.new', file)",
    ]
    return "\n".join(lines)


def safetensors_code(subject: Subject) -> str:
    """Writes Python code that saves a PyTorch file as safetensors, which is read first; "" for several files."""
    file = _weight_file(subject, ".bin")
    if not file or subject.report.adapter is not None:
        return ""
    lines = [
        "import pathlib, torch",
        "from safetensors.torch import save_file",
        f"folder = pathlib.Path({subject.folder!r})",
        f"state = torch.load(folder / {file!r}, map_location='cpu', weights_only=True)",
        "state = {name: tensor.clone().contiguous() for name, tensor in state.items()}",
        "save_file(state, folder / 'model.safetensors.new', metadata={'format': 'pt'})",
        "(folder / 'model.safetensors.new').replace(folder / 'model.safetensors')",
    ]
    return "\n".join(lines)


def _weight_file(subject: Subject, ending: str) -> str:
    """Gives the only file of the weights; "" if there are several, or if it has another format."""
    files = subject.report.checkpoint.files
    return files[0] if subject.folder and len(files) == 1 and files[0].endswith(ending) else ""


def _code_of(subject: Subject, changes: dict[str, dict[str, object]], part: str = "text_config") -> str:
    """Writes code for fields by file; those of a configuration are set in its `part`, if it has that part.

    "" where no folder may be changed.
    """
    if not subject.folder:
        return ""
    lines = ["import json, pathlib", f"folder = pathlib.Path({subject.folder!r})"]
    for file, fields in changes.items():
        lines += [f"file = folder / {json.dumps(file)}"]
        lines += ['settings = json.loads(file.read_text("utf-8")) if file.exists() else {}']
        # A model of several parts keeps the fields of its language model in a part of the file.
        place = f'(settings.get("{part}") or settings)' if file == "config.json" and part else "settings"
        lines += [f"{place}[{name!r}] = {value!r}" for name, value in fields.items()]
        # Not into the file itself: it may be a link, and the disk may be full.
        lines += ['new = file.with_name(file.name + ".new")', 'new.write_text(json.dumps(settings, indent=2), "utf-8")']
        lines += ["new.replace(file)"]
    return "\n".join(lines)
