"""What stands at index 0 of an encoded text, against a reading of what each family's tokenizer does."""

import json

import pytest
import transformers

from headscope.core.checkpoints.contents.tokenizer_file import first_token_of_file
from headscope.core.model.tokenizers import special_tokens_of

FIRST = {
    "bert": "[CLS]",
    "roberta": "<s>",
    "albert": "[CLS]",
    "electra": "[CLS]",
    "distilbert": "[CLS]",
    "bart": "<s>",
    "deberta-v2": "[CLS]",
    "funnel": "<cls>",
    "xlnet": None,  # A <sep> <cls>: the classification token comes last
    "xlm": "<s>",  # bos first, although cls_token is </s>
    "flaubert": "<s>",
    "t5": None,  # A </s>
    "gpt2": None,
    "layoutlmv2": "[CLS]",  # it takes words with their boxes
    "mpnet": "<s>",  # it refuses an empty vocabulary
    "roformer": "[CLS]",  # its class needs a package that need not be installed
}


@pytest.mark.parametrize(("model_type", "token"), FIRST.items())
def test_the_first_token_is_the_one_that_the_tokenizer_puts_there(model_type: str, token: str | None) -> None:
    assert special_tokens_of(model_type).first == token


def test_a_family_without_a_tokenizer_has_no_names() -> None:
    tokens = special_tokens_of("vit")
    assert (tokens.first, tokens.eos) == (None, None)


def test_a_character_that_no_one_can_see_is_not_a_name() -> None:
    assert special_tokens_of("canine").first is None


@pytest.mark.parametrize(
    "name", ["BertTokenizer", "RobertaTokenizer", "XLNetTokenizer", "T5Tokenizer", "LlamaTokenizer"]
)
def test_a_saved_tokenizer_file_says_what_its_tokenizer_does(name: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    tokenizer = getattr(transformers, name)()
    tokenizer.save_pretrained(tmp_path)
    ids = tokenizer("a").input_ids
    first = tokenizer.convert_ids_to_tokens(ids[:1])
    added = bool(first) and first[0] in tokenizer.all_special_tokens and first[0] != tokenizer.unk_token
    text = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    assert first_token_of_file(text) == (first[0] if added else None)


@pytest.mark.parametrize("text", ["{}", '{"post_processor": {"type": "Unheard"}}', '{"post_processor": [1]}'])
def test_a_file_that_does_not_say_is_an_error_not_a_guess(text: str) -> None:
    assert json.loads(text) is not None
    with pytest.raises(ValueError, match="post_processor"):
        first_token_of_file(text)
