"""Digests of functions in source files: the same for what changes nothing, another for what does."""

import pytest

from headscope.core.upstream.sources import SourceFile, Unvouched, code_digest, source_file

PLAIN = '''
class Head(Base):
    prefix = "head"
    keys_to_ignore_at_inference = ["past_key_values"]

    def forward(self, hidden: Tensor, past_key_values: Cache | None = None) -> Tensor:
        """Scores."""
        pooled = hidden[:, 0]
        return self.out(pooled, past_key_values=past_key_values)

TABLE = {"bert": [Rename("a", "b")], "gpt2": []}
'''


def digest(text: str, name: str = "Head.forward") -> str:
    return SourceFile(text).digest(name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Scores."""', '"""Scores of classes."""'),
        ("hidden: Tensor", "hidden: torch.Tensor"),
        (" -> Tensor", ""),
        ("past_key_values", "cache"),
        (
            "    def forward",
            "    @deprecate_kwarg('past_key_values', new_name='cache')\n    @auto_docstring\n    def forward",
        ),
        ("pooled = hidden[:, 0]", "# the first token\n        pooled = hidden[:, 0]\n"),
    ],
)
def test_what_changes_no_result_has_the_same_digest(old: str, new: str) -> None:
    assert digest(PLAIN.replace(old, new)) == digest(PLAIN) != ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hidden[:, 0]", "hidden[:, -1]"),
        ("hidden[:, 0]", "hidden[:, 1]"),
        ("hidden[:, 0]", "other[:, 0]"),
        ("self.out(", "self.in_("),
        ("| None = None", "| None = 0"),
        ("    def forward", "    @can_return_tuple\n    def forward"),
        ("return self", "yield self"),
    ],
)
def test_what_changes_a_result_has_another_digest(old: str, new: str) -> None:
    assert digest(PLAIN.replace(old, new)) != digest(PLAIN)


def test_a_class_is_its_bases_and_its_attributes() -> None:
    whole = digest(PLAIN, "Head")
    assert digest(PLAIN.replace("hidden[:, 0]", "hidden[:, 1]"), "Head") == whole
    assert digest(PLAIN.replace('["past_key_values"]', "[]"), "Head") == whole  # only generating looks at it
    assert digest(PLAIN.replace('"head"', '"tail"'), "Head") != whole
    assert digest(PLAIN.replace("(Base)", "(Other)"), "Head") != whole


def test_an_entry_of_a_table_is_its_value() -> None:
    assert digest(PLAIN, "[bert]") == digest(PLAIN.replace('"gpt2": []', '"gpt2": [1]'), "[bert]")
    assert digest(PLAIN, "[bert]") != digest(PLAIN.replace('"a", "b"', '"a", "c"'), "[bert]")
    assert digest(PLAIN, "[nothing]") == digest("", "[nothing]") != digest(PLAIN, "[bert]")
    assert digest(PLAIN, "nothing") == ""


def test_a_line_is_found_again_where_others_were_added() -> None:
    file, later = (
        SourceFile(PLAIN),
        SourceFile(PLAIN.replace("class Head", "import x\n\n\nclass Head").replace("Scores.", "A.\n\n        B.")),
    )
    line = 1 + next(at for at, text in enumerate(PLAIN.split("\n")) if "hidden[:, 0]" in text)
    place = file.place_of(line)
    assert place is not None and place[0] == "Head.forward"
    assert file.line_of(*place) == line and later.line_of(*place) == line + 5
    assert file.place_of(2) is None
    with pytest.raises(Unvouched):
        file.line_of("Head.forward", 10_000)


def test_files_of_the_installed_version() -> None:
    path = "models/bert/modeling_bert.py"
    assert source_file("models/nothing/modeling_nothing.py") is None
    assert code_digest(path, ("BertPooler.forward",)) != code_digest(path, ("BertPooler.__init__",)) != ""
    assert code_digest(path, ("BertPooler.forward", "BertPooler.nothing")) == ""
