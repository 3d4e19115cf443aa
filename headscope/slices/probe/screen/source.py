"""Values as Python source, laid out as `ruff format` does by default."""

from typing import Any

from rich.cells import cell_len

LINE_LENGTH = 88


def literal(value: Any) -> str:
    """Writes a string in double quotes, unless these need more escapes; other values as `repr` does."""
    if not isinstance(value, str):
        return repr(value)
    body = repr(f'{value}"')[1:-2]  # with a double quote in it, Python shows it in single ones
    if value.count('"') > value.count("'"):
        return f"'{body}'"
    return '"' + body.replace("\\'", "'").replace('"', '\\"') + '"'


def assignment(name: str, value: str | tuple[str, ...] | dict[str, Any]) -> str:
    """Writes the lines that assign a string, or strings in a tuple or dictionary, to a name."""
    if isinstance(value, str):
        text = literal(value)
        flat, is_alone = f"{name} = {text}\n", cell_len(text) + 4 > LINE_LENGTH  # too long for any line: it stays
        return flat if is_alone or cell_len(flat) <= LINE_LENGTH else f"{name} = (\n    {text}\n)\n"
    is_tuple = isinstance(value, tuple)
    items = [literal(key) if isinstance(value, tuple) else f"{literal(key)}: {literal(value[key])}" for key in value]
    begin, end = "()" if is_tuple else "{}"
    flat = f"{name} = {begin}{', '.join(items)}{',' if len(items) == 1 and is_tuple else ''}{end}\n"
    rows = "".join(f"    {item},\n" for item in items)
    return flat if cell_len(flat) <= LINE_LENGTH else f"{name} = {begin}\n{rows}{end}\n"
