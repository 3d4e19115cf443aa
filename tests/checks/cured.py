"""Which rules' findings are cured by code or by a command that a test runs, and which say why headscope cannot."""

from headscope.shared.topics import topics

CURED_BY_CODE = {
    *("HS106", "HS108", "HS109", "HS201", "HS204", "HS205", "HS206"),
    *("HS301", "HS302", "HS303", "HS306", "HS308", "HS309", "HS528", "HS601", "HS602"),
}
CURED_BY_COMMAND = {"HS107", "HS202", "HS203", "HS802", "HS803", "HS804", "HS805", "HS807", "HS808", "HS809"}
"""HS107 names the setting with which the adapter must be trained again; the HS8 are repaired in tests/states."""

_WHY_NOT = "**headscope can't do this for you.** "

NOT_CURED = {
    topic.id: topic.text.partition(_WHY_NOT)[2].partition("\n\n")[0]
    for topic in topics()
    if topic.group == "rules" and _WHY_NOT in topic.text
}
"""The reason that `headscope explain` and docs/rules.md give."""
