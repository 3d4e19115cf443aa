"""What a family's tokenizer calls its special tokens, read from the source of its class without running it."""

import ast
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from transformers.models.auto.configuration_auto import model_type_to_module_name
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Default names of a tokenizer's special tokens; None where its class sets none."""

    cls: str | None = None
    eos: str | None = None


def special_tokens_of(model_type: str) -> SpecialTokens:
    """The default special tokens of the tokenizer class that Transformers maps `model_type` to."""
    defaults = _defaults(_tokenizer_class(model_type))
    return SpecialTokens(defaults.get("cls_token"), defaults.get("eos_token"))


def padding_side_of(model_type: str) -> str:
    """The side on which the family's tokenizer pads unless it is told otherwise: `left` or `right`."""
    name = _tokenizer_class(model_type)
    for path in _candidate_files(name.removesuffix("Fast")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Assign(targets=[ast.Name("padding_side")], value=ast.Constant(str() as side)):
                    return side
                case ast.keyword(arg="padding_side", value=ast.Constant(str() as side)):
                    return side
    return "right"


def _tokenizer_class(model_type: str) -> str:
    names = TOKENIZER_MAPPING_NAMES.get(model_type)
    if isinstance(names, tuple | list):
        names = next((name for name in names if name), None)
    return names or ""


def _defaults(class_name: str) -> dict[str, str]:
    """The string defaults of the `__init__` of a tokenizer class; empty where its source cannot be found."""
    base = class_name.removesuffix("Fast")
    for path in _candidate_files(base):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in (base, class_name):
                return _string_defaults(node)
    return {}


def _candidate_files(class_name: str) -> list[Path]:
    """Source files whose name says that they may define `class_name`, the likeliest first."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None or not class_name:
        return []
    models = Path(spec.origin).parent / "models"
    wanted = class_name.removesuffix("Tokenizer").lower()
    folders = [
        folder for kind, name in TOKENIZER_MAPPING_NAMES.items() if _names(name, class_name)
        for folder in (model_type_to_module_name(kind),)
    ]  # fmt: skip
    ordered = sorted(dict.fromkeys(folders), key=lambda folder: folder.replace("_", "") != wanted)
    return [
        path
        for folder in ordered
        for path in (models / folder / f"tokenization_{folder}.py",)
        if path.is_file() and f"class {class_name}" in path.read_text(encoding="utf-8")
    ]


def _names(entry: object, class_name: str) -> bool:
    names = entry if isinstance(entry, tuple | list) else (entry,)
    return any(isinstance(name, str) and name.removesuffix("Fast") == class_name for name in names)


def _string_defaults(node: ast.ClassDef) -> dict[str, str]:
    init = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
    if init is None:
        return {}
    arguments = init.args.args[len(init.args.args) - len(init.args.defaults) :]
    pairs = zip(arguments, init.args.defaults, strict=True)
    return {
        argument.arg: default.value
        for argument, default in pairs
        if isinstance(default, ast.Constant) and isinstance(default.value, str)
    }
