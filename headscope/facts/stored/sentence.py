"""What sentence-transformers puts after a base model, as the checkpoint's own files say."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ModuleTensor:
    """A tensor in the weight file of a module: its name there, its shape and number format."""

    name: str
    """The tensor's name in the module's file."""
    shape: tuple[int, ...]
    """The sizes of its axes, in elements as stored."""
    dtype: str
    """Its number format, by PyTorch's name."""


@dataclass(frozen=True, slots=True)
class SentenceModule:
    """One module of the chain: its class name, its folder, and what its own settings and weight file say."""

    name: str
    """The module's class."""
    folder: str
    """Its folder in the checkpoint."""
    detail: str = ""
    """A short reading of its settings (`Tanh`, `mean`); may be empty."""
    input_size: int | None = None
    """The size of the vectors that it takes; null where its settings do not say."""
    output_size: int | None = None
    """The size of the vectors that it gives; null where its settings do not say."""
    weights: tuple[ModuleTensor, ...] = ()
    """The tensors in its own weight file."""
    scores: bool = False
    """Whether its result are the scores of a CrossEncoder."""
    fault: str = ""
    """Why loading it raises an error; empty where nothing is known that would."""


@dataclass(frozen=True, slots=True)
class PickledHead:
    """A classifier in a pickle (SetFit's `model_head.pkl`), read without executing it."""

    class_name: str
    """The class of the classifier, such as `LogisticRegression`; empty where it could not be read."""
    labels: tuple[str, ...] = ()
    """The classes; empty where neither the pickle nor `config_setfit.json` names them."""
    shape: tuple[int, ...] = ()
    """The shape of its weights as stored: scores x features; one score for two classes."""
    dtype: str = ""
    """The number format of its weights."""
    has_bias: bool = False
    """Whether it has an intercept."""
    library: str = ""
    """What saved it."""
    reason: str = ""
    """Why more is not known; otherwise empty."""


@dataclass(frozen=True, slots=True)
class SentencePipeline:
    """The modules that `modules.json` lists, in order, by class name."""

    modules: tuple[str, ...]
    """The modules in `modules.json`, in order, by class name."""
    pooling: tuple[str, ...] = ()
    """The modes of the pooling module in sentence-transformers' words; several are concatenated."""
    reason: str = ""
    """Why there are no modes; empty if there are."""
    classifier: str = ""
    """A file with a classifier that is not a part of the model (`model_head.pkl`); otherwise empty."""
    library_class: str = ""
    """The class of sentence-transformers that saved it, such as `CrossEncoder`; otherwise empty."""
    activation: str = ""
    """The PyTorch class that a CrossEncoder puts on its scores, such as `Sigmoid`; otherwise empty."""
    token_ids: tuple[int, ...] = ()
    """Tokens whose logits a CrossEncoder scores, for no before for yes; empty for other heads."""
    parts: tuple[SentenceModule, ...] = ()
    """The same modules with their settings and weights; empty where `modules.json` was not read."""
    max_length: int | None = None
    """The number of tokens at which the library cuts texts; null where no file says."""
    head: PickledHead | None = None
    """The classifier in `model_head.pkl`, read without executing it; null where there is none."""
