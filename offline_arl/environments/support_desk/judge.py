"""The rule judge: right final database, right answer."""

from __future__ import annotations

from offline_arl.environments.support_desk.desk import Desk
from offline_arl.environments.support_desk.phrases import declines
from offline_arl.environments.support_desk.tasks import DeskPayload, expectation


def judge(payload: DeskPayload, desk: Desk, answer: str | None) -> dict[str, bool]:
    """Judge an episode. Success is all of the returned components.

    - `database`: orders are exactly what the policy asks for; nothing else was changed.
    - `tickets`: exactly the tickets that the complaints call for.
    - `answer`: there is one, it declines something if and only if something had to be declined, and a status
      question is answered with the order's status and no other. Each order that a request is declined for was named in
      a call before: a desk that says sorry without having looked is else right whenever the shop has to decline.
    """
    expected = expectation(payload)
    return {
        "database": desk.orders == expected.orders,
        "tickets": desk.tickets == expected.tickets,
        "answer": answer is not None
        and _answer_is_right(answer, bool(expected.declined), expected.status_word)
        and expected.declined <= desk.named,
    }


def _answer_is_right(answer: str, refused: bool, status_word: str | None) -> bool:
    if declines(answer) != refused:
        return False
    if status_word is None:
        return True
    named = {word for word in ("processing", "shipped", "delivered") if word in answer.lower()}
    return named == {status_word}
