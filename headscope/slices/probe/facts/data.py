"""What `probe` says of its data: the input, the vectors, the labels, and how the model was loaded to read them."""

from dataclasses import dataclass

from headscope.core.facts.heads.tasks import Input

STABILITY = "experimental"
"""What these classes say in JSON may change in a minor version."""


@dataclass(frozen=True, slots=True)
class HeadInput:
    """What the head of the class reads: its pooling, and the module whose input is the candidate `head`."""

    class_name: str
    """The class of Transformers."""
    pooling: str
    """The kind of its pooling, as in `inspect`."""
    classifier: str
    """The module whose input is the candidate `head`."""
    new: tuple[str, ...] = ()
    """Weights between the hidden states and the classifier that the checkpoint doesn't give."""


@dataclass(frozen=True, slots=True)
class ProbeClass:
    """A class of the data and how many texts of it were used."""

    label: str
    """The label."""
    texts: int
    """How many texts with it were used."""


@dataclass(frozen=True, slots=True)
class VectorNumbers:
    """What the numbers of one candidate look like over all texts."""

    name: str
    """The name of the candidate."""
    anisotropy: float | None
    """The mean cosine between the vectors of two texts; null where a vector is zero."""
    dead: int
    """How many dimensions have the same value for every text."""
    padding: float | None = None
    """The largest change of the vectors of the shortest and the longest text by padding, relative to their largest
    number; null where it was not measured, and where numbers of only one of them are finite."""


@dataclass(frozen=True, slots=True)
class LayerNumbers:
    """What the first token of a text is worth in one layer, averaged over the texts of two tokens or more."""

    layer: int
    """The index of the hidden states; 0 is the embeddings."""
    first_share: float
    """The norm of the first token over the sum of the norms of all tokens, averaged over the texts."""
    cosine_without: float
    """The cosine between the mean over the tokens and the mean without the first, averaged."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The dtype that the model ran in."""

    dtype: str
    """The dtype that the model ran in."""
    stored: str
    """The dtype of most of the stored weights."""
    change: float | None = None
    """The largest change of a vector of the sample texts against float32, relative to its largest number; null where
    nothing was compared, or numbers became infinite."""
    tolerance: float | None = None
    """How much change is allowed; null where nothing was compared."""
    texts: int = 0
    """How many sample texts were compared."""


@dataclass(frozen=True, slots=True)
class FeatureNumbers:
    """What the pass over the texts shows, beside the scores."""

    vectors: tuple[VectorNumbers, ...]
    """What the numbers of each candidate look like."""
    layers: tuple[LayerNumbers, ...]
    """What the first token is worth in each layer; empty for images, sounds and texts of one token."""
    precision: Precision
    """The dtype that the model ran in."""
    fewest_tokens: int | None = None
    """Tokens of the shortest text; null for images and sounds."""
    most_tokens: int | None = None
    """Tokens of the longest text before it is cut; null for images and sounds."""
    max_tokens: int | None = None
    """The most tokens that the model takes; null where no limit is known."""
    truncated: int = 0
    """How many texts have more tokens than that, and were cut."""
    reused: bool = False
    """Whether the vectors are those of an earlier run."""


@dataclass(frozen=True, slots=True)
class Loading:
    """How the model was loaded: what `from_pretrained` takes."""

    reference: str
    """What `from_pretrained` was given."""
    revision: str | None
    """The commit, or the requested revision; null for a folder."""
    subfolder: str | None
    """The folder inside the repository; null for none."""
    model_class: str
    """The class."""
    encoder_decoder: bool = False
    """Whether the model has an encoder, whose layers the candidates are of, and a decoder."""
    remote_code: bool = False
    """Whether code of the checkpoint was run."""
    input: Input = Input.TEXT
    """What is classified."""
    base: str = ""
    """The module of the class that makes the hidden states; empty where that is the class itself."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a regression."""

    lowest: float
    """The lowest number."""
    highest: float
    """The highest number."""
    mean: float
    """Their mean."""
    deviation: float
    """Their standard deviation."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A text that is in the data with different labels. `rows` are row numbers of the file, from 1."""

    text: str
    """The text, shortened."""
    labels: tuple[str, ...]
    """Its labels, up to 20."""
    rows: tuple[int, ...]
    """Numbers of its rows in the file, from 1, up to 20."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A row whose label may be wrong: the best vector predicts another with confidence."""

    row: int
    """The number of the row in the file, from 1."""
    text: str
    """The text, shortened."""
    given: str
    """The label that the data give it."""
    predicted: str
    """What the best vector predicts, in a fold that did not see the row."""
    loss: float
    """The cross-entropy or the squared error of that prediction."""


@dataclass(frozen=True, slots=True)
class LabelFacts:
    """What the labels of the texts that were used look like."""

    ratio: float | None
    """Texts of the largest class for each text of the smallest; null for numbers."""
    numbers: Numbers | None
    """The numbers of a regression; null for classes."""
    repeated: int
    """How many texts are in the data again. They are kept in the fold of the first."""
    contradicting: int
    """How many texts are in the data with different labels."""
    contradictions: tuple[Contradiction, ...]
    """The first 20 of them."""
    suspects: tuple[Suspect, ...]
    """The up to 20 rows with the largest losses among those that are predicted wrongly."""
