"""The page that looks at checkpoints asks a Hub and nobody else: its content security policy, and which Hub that is."""

import base64
import hashlib
import re
from collections.abc import Iterable
from html import escape

PAGE = "look.html"
HUB = ("https://huggingface.co", "https://*.huggingface.co", "https://*.hf.co")
"""Where a browser finds the Hub: its address, and those to which it redirects requests for files."""
_SCRIPT = re.compile(r"<script(?P<attributes>[^>]*)>(?P<text>.*?)</script>", re.DOTALL)
_ADDRESS = re.compile(r'data-hub="[^"]*"')


def with_policy(page: str, hub: Iterable[str] = HUB) -> str:
    """The page with a policy that lets it load what the site holds, run the scripts in it, and ask the Hub."""
    address, *others = hub
    inline = (found["text"] for found in _SCRIPT.finditer(page) if "src=" not in found["attributes"])
    policy = {
        "default-src": ("'none'",),
        "script-src": ("'self'", *dict.fromkeys(map(_hash, inline))),
        "style-src": ("'self'", "'unsafe-inline'"),  # the theme's search writes its own
        "img-src": ("'self'", "data:", "blob:"),
        "connect-src": ("'self'", address, *others),
        "worker-src": ("'self'", "blob:"),
        "base-uri": ("'none'",),
        "form-action": ("'none'",),
    }
    told = "; ".join(" ".join((name, *sources)) for name, sources in policy.items())
    meta = f'<meta http-equiv="Content-Security-Policy" content="{escape(told)}">'
    page = _ADDRESS.sub(lambda _: f'data-hub="{escape(address)}"', page)
    return re.sub(r"<head>", lambda head: f"{head[0]}\n{meta}", page, count=1)


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
