"""The tasks whose heads headscope knows: names as on the command line."""

from enum import StrEnum


class Task(StrEnum):
    """A classification task of Transformers."""

    SEQUENCE_CLASSIFICATION = "sequence-classification"
    TOKEN_CLASSIFICATION = "token-classification"
    MULTIPLE_CHOICE = "multiple-choice"
    QUESTION_ANSWERING = "question-answering"
    NEXT_SENTENCE_PREDICTION = "next-sentence-prediction"
    IMAGE_CLASSIFICATION = "image-classification"
    AUDIO_CLASSIFICATION = "audio-classification"
    AUDIO_FRAME_CLASSIFICATION = "audio-frame-classification"
    AUDIO_XVECTOR = "audio-xvector"
    VIDEO_CLASSIFICATION = "video-classification"
