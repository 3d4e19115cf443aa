"""XML: text and attributes escaped, numbers short."""

from collections.abc import Iterable

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


def escaped(text: str) -> str:
    """`text` as it may appear in XML and HTML, between tags and inside quotes, in any encoding."""
    return in_ascii(text.translate(_ESCAPES))


def in_ascii(text: str) -> str:
    """`text` with every character beyond ASCII as its number."""
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def element(name: str, content: str = "", /, **attributes: object) -> str:
    """An element with attributes escaped; `content` is markup. `class_` is `class`, `_` in other names is `-`."""
    return (
        f"{opening_tag(name, **attributes)[:-1]}/>"
        if not content
        else f"{opening_tag(name, **attributes)}{content}</{name}>"
    )


def opening_tag(name: str, /, **attributes: object) -> str:
    """The tag that opens an element."""
    written = "".join(f' {_key(key)}="{escaped(_value(value))}"' for key, value in attributes.items())
    return f"<{name}{written}>"


def lines(parts: Iterable[str]) -> str:
    """Parts on separate lines."""
    return "\n".join(part for part in parts if part)


def _key(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _value(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
