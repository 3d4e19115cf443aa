"""Names of tensors, labels, files and models that would act on a terminal."""

from pathlib import Path

from hostile.corpus.case import CONFIG, Case, checkpoint, inspected, safetensors

_NAMES = {
    "escape": "\x1b[2J\x1b]0;owned\x07",
    "C1": "\x9b31m\x85",
    "NUL": "a\0b",
    "bidi": "\u202egnp.exe\u2066",
    "zero width": "a\u200bb\ufeff\u00ad",
    "lines": "a\nb\rc\u2028d",
    "markup": "[red]x[/red][/0][link=file:///etc]",
    "emoji": ":smile:",
    "tags": "a\U000e0041",
    "nothing": "",
    "long": "n" * 20_000,
}


def _weights(name: str) -> dict[str, bytes]:
    return {"model.safetensors": safetensors({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})}


def _as_model(folder: Path, name: str) -> list[str]:
    checkpoint(folder, {})
    return ["inspect", f"./{name}"]


CASES = (
    *(Case(f"tensor named {name}", inspected(_weights(text)), (0, 3)) for name, text in _NAMES.items()),
    *(
        Case(f"label named {name}", inspected(_weights("x"), CONFIG | {"id2label": {"0": text, "1": "b", "2": "c"}}),
             (0, 3))
        for name, text in _NAMES.items()
    ),
    *(
        Case(f"model named {name}", lambda folder, text=text: _as_model(folder, text), (2, 3), ("hint:",))
        for name, text in _NAMES.items()
        if text
    ),
)  # fmt: skip
