"""Places without what `from_pretrained` reads: their real contents, as an error or in the manifest."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from traceback import clear_frames

from headscope.core.checkpoints.contents.sentence import read_sentence_pipeline
from headscope.core.checkpoints.contents.weights import FileStorage, read_weight_file, read_weights
from headscope.core.checkpoints.exports.refusal import refuse_exports
from headscope.core.checkpoints.foreign.adapter_hub import refuse_adapter_hub
from headscope.core.checkpoints.foreign.libraries import refuse_library
from headscope.core.checkpoints.manifest import bare_manifest, in_state
from headscope.core.checkpoints.states.place import Found, StatePlace
from headscope.core.checkpoints.states.recognize import as_error, recognize
from headscope.core.facts import CheckpointKind, CheckpointManifest, Gap, TensorHeader
from headscope.core.facts.stored.checkpoint import CONFIG, WRITTEN_HEAD
from headscope.errors import HeadscopeError, Malformed, NotFound, Unsupported, WithoutConfig

_NO_CONFIG = "add the config.json of the model, or run `headscope repair MODEL -o DIR --config FOLDER_OR_ID`"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
_ONNX = "onnx/"
"""The folder in which Optimum and sentence-transformers put their exports."""


@dataclass(frozen=True, slots=True)
class PlaceSurroundings:
    """Place where a checkpoint was looked for: its storage, all files there, and the one weight file that was named, if
    any.

    `repo` is the Hub ID of a repository, "" for a place on this machine.
    """

    storage: FileStorage
    place: StatePlace
    reference: str
    file: str | None = None
    repo: str = ""

    def refuse(self) -> None:
        """Raises Inventoried where another library wrote the files, or where they are exports."""
        names = self.storage.names()
        if self.file is not None:
            # Other weights in the folder say nothing about the named file, but settings beside it do.
            names = (self.file, *(name for name in names if name.endswith((".json", ".cfg"))))
        refuse_exports(names, self.storage.open)
        self._refuse_foreign(names)

    def _refuse_foreign(self, names: Collection[str]) -> None:
        """Raises Unsupported for a folder of another library: Inventoried, with its head, if headscope reads that.

        For places without the weights of a Transformers checkpoint: reading costs nothing if no file is named for it.
        """
        refuse_adapter_hub(names, self.storage, self.reference)
        refuse_library(names, self.storage, self.reference)

    def _refuse_other_weights(self) -> None:
        """Raises Unsupported for weights that no class of Transformers has: of another library, of `headscope code`."""
        if {"classifier.json", WRITTEN_HEAD[1]} <= set(self.storage.names()):
            raise Unsupported(
                f"{self.reference} is a classifier that a module of `headscope code` saved",
                "load it with Classifier.load(FOLDER) of that module; its checkpoint can be inspected",
            )
        self._refuse_foreign(self.storage.names())

    def state(self, *, is_bad_file: bool = False) -> Found | None:
        """Finds the state of a place, see `recognize`.

        The repair of a repository starts with the download, because its code runs in a folder.
        """
        found = recognize(self.place, is_stored=bool(self.repo), is_bad_file=is_bad_file)
        repair = found.state.repair if found is not None else None
        if found is None or repair is None or not self.repo:
            return found
        sentence = f"Download the files first (hf download {self.repo} --local-dir .). {repair.sentence}"
        return replace(found, state=replace(found.state, repair=replace(repair, sentence=sentence)))

    def error_without_config(self) -> HeadscopeError:
        """Builds the error for a place without a config.json: what it is instead.

        Raises Inventoried for another library's files.
        """
        self.refuse()
        reference, file = self.reference, self.file
        if file is None and set(WRITTEN_HEAD) <= set(self.storage.names()):
            return Unsupported(
                f"{reference} is a classifier that `headscope probe --write-head` wrote as a Python module",
                f"run its {WRITTEN_HEAD[0]}; what headscope examines is the checkpoint that is named there",
            )
        found = self.state()
        if found is not None:
            return as_error(reference, found.state)
        pipeline = None if file else read_sentence_pipeline(self.storage)
        modules = pipeline.modules if pipeline is not None else ()
        if modules[:1] in (("StaticEmbedding",), ("BoW",), ("WordEmbeddings",)):  # it starts with word vectors
            return Unsupported(
                f"{reference} is a sentence-transformers checkpoint without a model of Transformers "
                f"({' -> '.join(modules)}): its vectors come from a table of tokens, and it needs no config.json",
                "load it with sentence_transformers.SentenceTransformer; headscope reads heads of Transformers models",
            )
        tensors = _tensors_in(self)
        if tensors:
            error = WithoutConfig(f"{reference}: the weights have no {CONFIG} beside them.", _NO_CONFIG, tensors)
            error.reference = reference
            return error
        if file:
            return NotFound(f"{reference} has no {CONFIG} beside it", "add the config.json of its model")
        is_tokenizer = "tokenizer_config.json" in self.storage.names()
        return NotFound(
            f"{reference} is not a checkpoint: it holds {'a tokenizer, but ' if is_tokenizer else ''}no {CONFIG}",
            "give the folder that the model was saved to"
            if is_tokenizer
            else "give a folder written by save_pretrained",
        )

    def manifest_in_state(self, kind: CheckpointKind, err: HeadscopeError) -> CheckpointManifest:
        """Reads the manifest of a checkpoint whose weights could not be read, if its state tells what they would be.

        Raises an error of the same kind that names the state, Unsupported for another library's files, or the error
        itself.
        """
        clear_frames(err.__traceback__)  # they hold what was read so far, and the file may be read again
        self._refuse_other_weights()
        found = self.state(is_bad_file=isinstance(err, Malformed))
        if found is None:
            raise err
        if found.tensors is None and not found.state.is_ambiguous:
            raise as_error(self.reference, found.state, type(err)) from err
        reason = f"from_pretrained cannot load them, as {found.state.rule} reports"
        return in_state(bare_manifest(self.storage, self.reference, kind, Gap("weights", reason)), found)

    def with_state(self, manifest: CheckpointManifest) -> CheckpointManifest:
        """Adds the state to the manifest of a checkpoint that lacks some or all weights.

        Raises Inventoried if the place holds no weights but those of another library.
        """
        if not manifest.tensors:
            self._refuse_other_weights()
            # Optimum and sentence-transformers put exports into a subfolder, which the storage's own names don't list.
            exported = (name for name in self.place.names if name.startswith(_ONNX) or name == CONFIG)
            refuse_exports(exported, self.place.open)
        found = self.state()
        return manifest if found is None else in_state(manifest, found)


def _tensors_in(around: PlaceSurroundings) -> tuple[TensorHeader, ...]:
    """Reads the headers of the weight file, or of the place's weights; () if they cannot be read."""
    storage = around.storage
    try:
        if around.file is not None:
            return read_weight_file(storage, around.file).tensors
        usual = read_weights(storage, {}).tensors
        names = [name for name in storage.names() if name.endswith(_WEIGHTS) and "/" not in name]
        return usual or (read_weight_file(storage, names[0]).tensors if len(names) == 1 else ())
    except Unsupported:  # it says what the file is: a compiled program, say
        raise
    except HeadscopeError:
        # The headers only enrich the error, which is about the missing config.json.
        return ()
