"""Request rows of Helicone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Score, Usage

Fields = dict[str, Any]
NOT_CACHED = "00000000-0000-0000-0000-000000000000"


def completion(text: str = "a") -> Fields:
    message = {"role": "assistant", "content": text}
    return {
        "object": "chat.completion",
        "id": "chatcmpl-1",
        "model": "m-1",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }


def row(*messages: Fields, **more: Any) -> Fields:
    return {
        "request_id": "r-1",
        "request_created_at": "2026-01-01T10:00:00.000Z",
        "request_body": {"model": "m", "messages": [{"role": "user", "content": "q"}, *messages]},
        "request_path": "https://oai.helicone.ai/v1/chat/completions",
        "request_user_id": "u",
        "request_properties": {"Helicone-Session-Id": "s-1", "Helicone-Session-Path": "/plan", "App": "x"},
        "response_id": "p-1",
        "response_created_at": "2026-01-01T10:00:01.000Z",
        "response_body": completion(),
        "response_status": 200,
        "provider": "OPENAI",
        "costUSD": 0.25,
        "cache_reference_id": NOT_CACHED,
        "feedback_rating": None,
        "scores": None,
        "signed_body_url": None,
        **more,
    }


def read(tmp_path: Path, *records: Fields) -> LogContents:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    contents = read_logs(path)
    assert set(contents.formats.values()) == {"helicone"}
    return contents


def test_the_rows_of_a_session_are_one_trajectory_with_the_scores_of_each_call(tmp_path: Path) -> None:
    history = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "more"}]
    second = row(
        *history,
        request_id="r-2",
        request_created_at="2026-01-01T10:00:05.000Z",
        response_body=completion("b"),
        feedback_rating=False,
        feedback_created_at="2026-01-02T00:00:00.000Z",
        scores={"toxicity": 25, "is_polite-hcone-bool": 1, "helicone-score-feedback": 0},
    )
    (trajectory,) = read(tmp_path, row(feedback_rating=True), second).trajectories
    assert [message.text for message in trajectory.messages] == ["q", "a", "more", "b"]
    assert (trajectory.session_id, trajectory.user_id, trajectory.agent) == ("s-1", "u", "/plan")
    assert trajectory.scores == [
        Score("feedback", 1.0, scorer_kind="human", direction="higher_is_better", message_index=1),
        Score(
            "feedback",
            0.0,
            scorer_kind="human",
            direction="higher_is_better",
            message_index=3,
            timestamp="2026-01-02T00:00:00.000Z",
        ),
        Score("toxicity", 25.0, direction="lower_is_better", message_index=3),
        Score("is_polite", 1.0, message_index=3),
    ]
    assert trajectory.messages[1].usage == Usage(1, 2, 0.25)
    assert [message.id for message in trajectory.messages] == [None, "r-1", None, "r-2"]
    assert trajectory.messages[1].metadata["properties"]["App"] == "x"
    assert trajectory.outcome.status == "unscored"


def test_failed_cached_and_unstored_rows(tmp_path: Path) -> None:
    cancelled = row(request_id="r-3", response_status=-3, response_body={})
    elsewhere = row(request_id="r-4", request_body={}, response_body={}, signed_body_url="https://bucket/x")
    embedding = row(
        request_id="r-5",
        request_path="https://oai.helicone.ai/v1/embeddings",
        request_body={"input": "x"},
        response_body={},
    )
    cached = row(request_id="r-6", request_properties={}, cache_reference_id="0f0e0d0c-0000-0000-0000-000000000001")
    contents = read(tmp_path, cancelled, elsewhere, embedding, cached)
    assert [(fate.fate, fate.reason) for fate in contents.fates] == [
        ("set_apart", "failed call: http_-3"),
        ("set_apart", "its bodies are behind signed_body_url, not in the row"),
        ("set_apart", "is no call of a chat model: https://oai.helicone.ai/v1/embeddings"),
        ("used", ""),
    ]
    (trajectory,) = contents.trajectories
    assert trajectory.messages[1].producer.kind == "copy"
    assert trajectory.session_id is None
