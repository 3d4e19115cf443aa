"""Special tokens from tokenizer sources against the tokenizer classes themselves."""

import pytest
import transformers

from headscope.model.tokenizers import special_tokens_of

CLASSES = {
    "bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "xlnet": "XLNetTokenizer",
    "albert": "AlbertTokenizer",
    "electra": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "bart": "RobertaTokenizer",
}


@pytest.mark.parametrize(("model_type", "class_name"), CLASSES.items())
def test_the_first_token_is_the_one_that_the_tokenizer_would_make(model_type: str, class_name: str) -> None:
    assert special_tokens_of(model_type).cls == str(getattr(transformers, class_name)().cls_token)


def test_a_family_without_a_tokenizer_has_no_names() -> None:
    tokens = special_tokens_of("vit")
    assert (tokens.cls, tokens.eos) == (None, None)
