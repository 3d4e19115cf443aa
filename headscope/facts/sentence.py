"""What sentence-transformers puts after a base model, as the checkpoint's own files say."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SentencePipeline:
    """The modules that `modules.json` lists, in order, by class name.

    `pooling` are the modes of its pooling module in sentence-transformers' words (`mean`, `cls`, `lasttoken`); several
    are concatenated. () means that there is no pooling module, or that its settings could not be read: then `reason`
    says why. `classifier` is a file with a classifier that is no part of the model (SetFit's `model_head.pkl`), or "".
    `library_class` is the class of sentence-transformers that saved it (`CrossEncoder`), "" where no file says.
    `activation` is the PyTorch class that the library puts on the scores of a CrossEncoder (`Sigmoid`), "" for none.
    `token_ids` are the tokens whose logits a CrossEncoder scores: the one for no before the one for yes.
    """

    modules: tuple[str, ...]
    pooling: tuple[str, ...] = ()
    reason: str = ""
    classifier: str = ""
    library_class: str = ""
    activation: str = ""
    token_ids: tuple[int, ...] = ()
