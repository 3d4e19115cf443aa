"""Texts to send to an engine where the user gives none: of different lengths, kinds and topics."""

from itertools import pairwise

SAMPLE_TEXTS = (
    "Wonderful.",
    "It was not worth the money.",
    "The meeting has been moved to Thursday at nine.",
    "Why does the printer stop after the second page?",
    "I loved every minute of it, although the ending came too early for my taste.",
    "Please cancel my order 4471 and send the refund to the card that I paid with.",
    "Shares of the carmaker fell by three percent after it lowered its forecast for the year.",
    "A dull plot.",
    "She scored twice in the second half, and the visitors never recovered.",
    "The soup was cold, the waiter was rude, and nobody apologized; we won't come back.",
    "Researchers found that the treatment shortened the illness by two days on average.",
    "How do I reset my password if I no longer have the phone that receives the codes?",
    "Fast delivery, well packed, exactly as described.",
    "Paris is the capital of France and its largest city.",
    "Nobody knows why the lights were still on when the last of them left the building that night.",
    "The update installs, but afterwards the application closes without a message whenever a file with more than a "
    "thousand rows is opened; going back to the previous version solves it until the next update.",
)
SAMPLE_PAIRS = tuple(pairwise(SAMPLE_TEXTS))
"""Each text with the next."""
_UNUSUAL_TEXTS = (
    ".",
    "OK",
    "Größe, naïve café: 12,50 € — ½ of it in 東京 🙂.",
    "WHY IS EVERYTHING IN CAPITALS?",
    "  two  spaces,\ta tab\nand a new line  ",
    "مرحبا بالعالم",
    "Ünïcödé e\u0301 ﬁ ﬂ ①",
)
CARD_TEXTS = (
    *SAMPLE_TEXTS[:8], *_UNUSUAL_TEXTS, *SAMPLE_TEXTS[8:], *(" ".join(pair) for pair in SAMPLE_PAIRS[:9])
)  # fmt: skip
"""Texts of a card: those of the sample, unusual ones, and longer ones."""
CARD_PAIRS = (*SAMPLE_PAIRS, (_UNUSUAL_TEXTS[2], _UNUSUAL_TEXTS[0]))
