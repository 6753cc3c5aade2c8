"""What kind of image a reference is to, as far as the reference tells."""

from __future__ import annotations

import mimetypes
import re

_DATA = re.compile(r"data:(image/[a-z+.-]+)[;,]")
_KNOWN = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


def image_type(uri: str) -> str | None:
    """The media type of a data URL or of a file or URL with a known ending, where it is one that models take.

    >>> image_type("data:image/png;base64,AA=="), image_type("https://a.b/c.JPG?x=1"), image_type("file-17")
    ('image/png', 'image/jpeg', None)
    """
    data = _DATA.match(uri)
    kind = data[1] if data else mimetypes.guess_type(uri.split("?")[0].split("#")[0].lower())[0]
    return kind if kind in _KNOWN else None
