"""Which rules' findings are cured by code or by a command that a test runs, and why the others are not."""

CURED_BY_CODE = {
    *("HS106", "HS108", "HS109", "HS201", "HS204", "HS205", "HS206"),
    *("HS301", "HS302", "HS303", "HS306", "HS308", "HS309", "HS528", "HS601", "HS602"),
}
CURED_BY_COMMAND = {"HS107", "HS202", "HS203", "HS802", "HS803", "HS804", "HS805", "HS807", "HS808", "HS809"}
"""HS107 names the setting with which the adapter must be trained again; the HS8 are repaired in tests/states."""

_LOST = "what is lost is in another save, or nowhere: no command brings it back"
_TRAINING = "only a training gives it, or the user knows that there was one"
_DATA = "the labels are the user's: which of two sides is right, no file tells"
_LIVE = "it depends on the code that loaded, changed or saved the model"
_ENGINE = "the engine would have to change, or the user takes another"
_OTHER_TOOL = "another program makes the files, from what isn't in the folder"
_CODE = "the code that was saved beside the model, or its configuration, must be found first"
_NOTHING = "there is nothing to cure"

NOT_CURED = {
    **dict.fromkeys(("HS101", "HS103", "HS104", "HS405", "HS407", "HS501", "HS504", "HS717", "HS720", "HS801"), _LOST),
    **dict.fromkeys(("HS102", "HS401", "HS502", "HS718", "HS010"), _TRAINING),
    **dict.fromkeys((*(f"HS00{number}" for number in range(1, 10)), "HS011"), _DATA),
    **dict.fromkeys((*(f"HS70{number}" for number in range(1, 10)), "HS724", "HS402", "HS404"), _LIVE),
    **dict.fromkeys((*(f"HS71{number}" for number in range(7)), "HS719", "HS721", "HS722", "HS723"), _LIVE),
    **dict.fromkeys((f"HS90{number}" for number in range(1, 6)), _ENGINE),
    **dict.fromkeys(("HS806", "HS810", "HS811", "HS812", "HS406"), _OTHER_TOOL),
    **dict.fromkeys(("HS111", "HS112", "HS113", "HS403"), _CODE),
    **dict.fromkeys(("HS105", "HS110"), _NOTHING),
    **dict.fromkeys(("HS304", "HS307", "HS310", "HS527", "HS529"), "the tokenizer of the training has to be found"),
    "HS305": "the class reads padding whatever the files say",
    **dict.fromkeys(
        ("HS521", "HS522", "HS523", "HS524", "HS525", "HS526"), "the run sees that, not why; other rules do"
    ),
}
