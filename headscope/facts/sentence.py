"""What sentence-transformers puts after a base model, as the checkpoint's own files say."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ModuleTensor:
    """A tensor in the weight file of a module: its name there, its shape and number format."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class SentenceModule:
    """One module of the chain: its class name, its folder, and what its own settings and weight file say.

    `detail` is a short reading of its settings (`Tanh`, `mean`), `weights` are the tensors of its file. `scores` says
    that its result are the scores of a CrossEncoder. `fault` says why loading it raises an error, "" where nothing is
    known that would. Sizes are None where the settings name none.
    """

    name: str
    folder: str
    detail: str = ""
    input_size: int | None = None
    output_size: int | None = None
    weights: tuple[ModuleTensor, ...] = ()
    scores: bool = False
    fault: str = ""


@dataclass(frozen=True, slots=True)
class PickledHead:
    """A classifier in a pickle (SetFit's `model_head.pkl`), read without executing it.

    `shape` is that of its weights as stored: scores x features, one score for two classes. `labels` are its classes,
    () where it names none. `library` is what saved it. `reason` says why more is not known, "" where all is.
    """

    class_name: str
    labels: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: str = ""
    has_bias: bool = False
    library: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SentencePipeline:
    """The modules that `modules.json` lists, in order, by class name.

    `pooling` are the modes of its pooling module in sentence-transformers' words (`mean`, `cls`, `lasttoken`); several
    are concatenated. () means that there is no pooling module, or that its settings could not be read: then `reason`
    says why. `classifier` is a file with a classifier that is not a part of the model (SetFit's `model_head.pkl`), or
    "". `library_class` is the class of sentence-transformers that saved it (`CrossEncoder`), "" where no file says.
    `activation` is the PyTorch class that the library puts on the scores of a CrossEncoder (`Sigmoid`), "" for none.
    `token_ids` are the tokens whose logits a CrossEncoder scores: the one for no before the one for yes. `parts` are
    the modules with their settings and weights. `max_length` is the number of tokens at which texts are cut, None where
    no file says. `head` is what `classifier` holds, None where there is no such file.
    """

    modules: tuple[str, ...]
    pooling: tuple[str, ...] = ()
    reason: str = ""
    classifier: str = ""
    library_class: str = ""
    activation: str = ""
    token_ids: tuple[int, ...] = ()
    parts: tuple[SentenceModule, ...] = ()
    max_length: int | None = None
    head: PickledHead | None = None
