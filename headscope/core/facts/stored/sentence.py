"""What sentence-transformers puts after a base model, as the checkpoint's own files say."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    """Why loading or calling it raises an error; empty where nothing is known that would."""
    file: str = ""
    """Its weight file, inside its folder; empty where it has none."""
    reads: str = ""
    """What it reads, by the library's name, such as `token_embeddings`; empty where that is not known."""
    writes: str = ""
    """What it writes, by the library's name, such as `sentence_embedding`; empty where that is not known."""
    modes: tuple[str, ...] = ()
    """The modes of a pooling module."""
    activation: str = ""
    """The PyTorch class that a Dense module applies to its result, by its path."""
    has_bias: bool = True
    """Whether a Dense module adds a bias."""
    has_residual: bool = False
    """Whether a Dense module adds what it reads to its result."""
    dropout: float = 0.0
    """The share of its input that a Dropout module sets to zero in training."""
    unknown: str = ""
    """Why headscope doesn't know what it computes; empty where it does."""


@dataclass(frozen=True, slots=True)
class PickledHead:
    """A classifier in a pickle (SetFit's `model_head.pkl`), read without executing it."""

    class_name: str
    """The class of the classifier, such as `LogisticRegression`; empty where it could not be read."""
    labels: tuple[str, ...] = ()
    """The classes in the order of its scores; empty where neither the pickle nor `config_setfit.json` names them."""
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
    classes_are_texts: bool = False
    """Whether the classifier's classes are texts, which SetFit takes as they are; numbers are places in its labels."""
    fault: str = ""
    """How `config_setfit.json` and the classifier contradict each other on the classes; empty where they don't."""


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

    @property
    def chain(self) -> tuple[SentenceModule, ...]:
        """Base model and the modules after it that make what the library returns.

        Empty where something else makes it: a class of Transformers, tokens of its vocabulary, a pickled classifier.
        """
        is_other = self.token_ids or self.classifier or self.library_class in _OTHER_RESULTS
        if is_other or len(self.parts) < 2 or self.parts[0].name != "Transformer" or _SPLADE in self.modules:
            return ()
        return self.parts

    @property
    def chain_class(self) -> str:
        """Class of the library that runs the chain."""
        return self.library_class or ("CrossEncoder" if self.score_count else "SentenceTransformer")

    @property
    def vector_size(self) -> int | None:
        """Size of the vectors that the last module gives; None where its settings don't say."""
        sized = (part for part in reversed(self.parts) if part.name not in ("Normalize", "Dropout"))
        return next((part.output_size for part in sized), None)

    @property
    def score_count(self) -> int:
        """Number of scores that the chain makes; 0 for an embedding."""
        scored = next((part for part in reversed(self.chain) if part.scores), None)
        return (scored.output_size or 0) if scored is not None else 0

    @property
    def unknown(self) -> str:
        """Why headscope doesn't know what the chain computes; empty where it does."""
        part = next((part for part in self.chain if part.unknown), None)
        return "" if part is None else f"{part.folder or 'the first module'} ({part.name}): {part.unknown}"


_OTHER_RESULTS = ("SparseEncoder", "MultiVectorEncoder")
_SPLADE = "SpladePooling"


def read_prompts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Reads the prompts that a chain has for its texts, by name, without empty ones."""
    found = settings.get("prompts")
    named = found.items() if isinstance(found, dict) else ()
    return {name: prompt for name, prompt in named if isinstance(prompt, str) and prompt}
