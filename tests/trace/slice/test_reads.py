"""The fields of the configuration that a class reads: a file is parsed once, for what `inspect` says of each class."""

from pathlib import Path
from typing import Any

import pytest
from transformers.models.bart import modeling_bart
from transformers.models.bert import modeling_bert
from transformers.models.swin import modeling_swin

from headscope.core.trace.slice.reads import _fields_in, _fields_in_source_of


def classes(module: Any) -> list[type]:
    return [item for item in vars(module).values() if isinstance(item, type) and item.__module__ == module.__name__]


@pytest.mark.parametrize("module", [modeling_bert, modeling_bart, modeling_swin])
def test_a_file_that_is_parsed_once_gives_what_each_source_gives(module: Any) -> None:
    found = classes(module)
    assert len(found) > 10
    assert any(_fields_in(cls) for cls in found)
    assert [cls for cls in found if _fields_in(cls) != _fields_in_source_of(cls)] == []


def test_nested_classes_and_those_of_a_branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nested_heads.py").write_text(
        "if True:\n    class Outer:\n        def read(self): return self.config.outer\n"
        "        class Inner:\n            def read(self, config): return config.inner\n"
        "def make():\n    class Local:\n        def read(self, config): return getattr(config, 'local')\n"
        "    return Local\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import nested_heads  # type: ignore[import-not-found]

    assert _fields_in(nested_heads.Outer) == ("inner", "outer")
    assert _fields_in(nested_heads.Outer.Inner) == ("inner",)
    assert _fields_in(nested_heads.make()) == ("local",)


def test_a_class_without_a_source_reads_nothing() -> None:
    assert _fields_in(type("Made", (), {})) == ()
