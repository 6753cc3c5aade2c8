"""Times of logs as moments."""

from __future__ import annotations

import polars as pl
import pytest

from offline_arl.trajectories.moments import began, moment


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00+00:00"),
        ("2026-01-01T00:00:00.25Z", "2026-01-01T00:00:00.250000+00:00"),
        ("2026-01-01T00:00:00.123456789+0200", "2025-12-31T22:00:00.123456+00:00"),
        ("2026-01-01 00:00:00-05:30", "2026-01-01T05:30:00+00:00"),
        ("2026-01-01T00:00-05", "2026-01-01T05:00:00+00:00"),
        ("2026-01-01 00:00:00 UTC", "2026-01-01T00:00:00+00:00"),
        ("2026-01-01T10:00", "2026-01-01T10:00:00+00:00"),
        (" 2026-01-01 ", "2026-01-01T00:00:00+00:00"),
        ("2026-13-01T00:00:00Z", None),
        ("2026-01-01T25:00:00Z", None),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_moment(text: str | None, expected: str | None) -> None:
    """Among others of other forms: what one row looks like must not decide how the next one is read."""
    frame = pl.DataFrame({"at": ["2026-01-01", text, "2026-01-01T00:00:00+02:00"]}, schema={"at": pl.String()})
    found = frame.select(moment(pl.col("at"))).to_series()[1]
    assert (found.isoformat() if found else None) == expected


def test_where_no_beginning_is_known_the_end_stands_for_it() -> None:
    frame = pl.DataFrame(
        {"started_at": ["2026-01-02", None, "soon"], "ended_at": ["2026-01-03", "2026-01-04", None]},
        schema={"started_at": pl.String(), "ended_at": pl.String()},
    )
    assert [at and at.day for at in frame.select(began()).to_series()] == [2, 4, None]
