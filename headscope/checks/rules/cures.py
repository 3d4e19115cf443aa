"""Code that cures a finding, for the checkpoint that was checked: it sets one field in a file, and leaves all else."""

import json

from headscope.checks.facts import Subject


def setting_code(subject: Subject, name: str, value: object) -> str:
    """Writes Python code that sets a field of tokenizer_config.json; "" where no folder may be changed."""
    # Not `save_pretrained`: it writes all of the file in the form of the installed version, which others may not read.
    return _code_of(subject, {"tokenizer_config.json": {name: value}}) if subject.folder else ""


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
    if not subject.folder or found is None or found.id is None:
        return ""
    changes: dict[str, dict[str, object]] = {"config.json": {"pad_token_id": found.id}}
    if "pad" not in tokens:
        changes["tokenizer_config.json"] = {"pad_token": found.token}
    return _code_of(subject, changes)


def _code_of(subject: Subject, changes: dict[str, dict[str, object]]) -> str:
    lines = ["import json, pathlib", f"folder = pathlib.Path({subject.folder!r})"]
    for file, fields in changes.items():
        lines += [f"file = folder / {json.dumps(file)}"]
        lines += ['settings = json.loads(file.read_text("utf-8")) if file.exists() else {}']
        # A model of several parts keeps the fields of its language model in a part of the file.
        place = 'settings.get("text_config", settings)' if file == "config.json" else "settings"
        lines += [f"{place}[{name!r}] = {value!r}" for name, value in fields.items()]
        lines += ['file.write_text(json.dumps(settings, indent=2), "utf-8")']
    return "\n".join(lines)
