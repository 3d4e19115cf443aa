"""From the names in a folder to the library that wrote it: each is tried by its own files."""

from collections.abc import Collection

from headscope.checkpoints.contents.weights import FileStorage
from headscope.checkpoints.foreign.adapter_hub import refuse_adapter_hub
from headscope.checkpoints.foreign.flair import refuse_flair
from headscope.checkpoints.foreign.open_clip import refuse_open_clip
from headscope.checkpoints.foreign.spacy import refuse_spacy


def refuse_foreign(names: Collection[str], storage: FileStorage, reference: str) -> None:
    """Raises Unsupported, with the head as far as the files describe it, for a folder of another library.

    For places without the weights of a Transformers checkpoint: reading costs nothing where no file is named for it.
    """
    refuse_adapter_hub(names, storage, reference)
    refuse_open_clip(names, storage, reference)
    refuse_spacy(names, storage, reference)
    refuse_flair(names, storage, reference)
