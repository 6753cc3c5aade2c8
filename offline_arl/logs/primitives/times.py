"""Points in time as logs write them: ISO 8601, seconds or milliseconds since 1970, dates of HTTP headers."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# Seconds since 1970 reach this in the year 5138, milliseconds did in March 1973; the same for micro and nano.
_THOUSAND_TIMES = 1e11
_DATE_AND_TIME = re.compile(r"^([0-9]{4}-[0-9]{2}-[0-9]{2}) ([0-9]{2}:)")


def iso_time(value: object) -> str | None:
    """ISO 8601 text in UTC of a number of seconds, milli-, micro- or nanoseconds; other text as it is.

    Of a text such as databases write it, only the blank between date and time is replaced.

    >>> iso_time(1749139903), iso_time(1749139903250), iso_time("2025-06-05T16:11:43+02:00")
    ('2025-06-05T16:11:43Z', '2025-06-05T16:11:43.250Z', '2025-06-05T16:11:43+02:00')
    >>> iso_time("1749139903.5"), iso_time("2025-06-05 16:11:43+00:00"), iso_time(True), iso_time("")
    ('2025-06-05T16:11:43.500Z', '2025-06-05T16:11:43+00:00', None, None)
    """
    if isinstance(value, str):
        text = value.strip()
        try:
            value = float(text)
        except ValueError:
            return _DATE_AND_TIME.sub(r"\1T\2", text) or None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    if not 0 < seconds < 1e20:
        return None
    while seconds >= _THOUSAND_TIMES:
        seconds /= 1000
    moment = datetime.fromtimestamp(round(seconds, 6), UTC)
    precision = "microseconds" if moment.microsecond % 1000 else "milliseconds" if moment.microsecond else "seconds"
    return moment.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def http_date(value: object) -> str | None:
    """ISO 8601 text of the date in an HTTP header.

    >>> http_date("Thu, 05 Jun 2025 16:11:43 GMT"), http_date("soon")
    ('2025-06-05T16:11:43Z', None)
    """
    if not isinstance(value, str):
        return None
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    moment = moment.astimezone(UTC) if moment.tzinfo is not None else moment
    return moment.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"
