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
      question is answered with the order's status and no other. Who declines has called a tool before: a desk that
      says sorry to everyone would else be right in three of ten tasks.
    """
    expected = expectation(payload)
    return {
        "database": desk.orders == expected.orders,
        "tickets": desk.tickets == expected.tickets,
        "answer": answer is not None
        and _answer_is_right(answer, expected.refused, expected.status_word)
        and (desk.asked or not expected.refused),
    }


def _answer_is_right(answer: str, refused: bool, status_word: str | None) -> bool:
    if declines(answer) != refused:
        return False
    if status_word is None:
        return True
    named = {word for word in ("processing", "shipped", "delivered") if word in answer.lower()}
    return named == {status_word}
