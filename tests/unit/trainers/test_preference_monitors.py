"""What the monitors of preference training add up, and when they warn."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from offline_arl.trainers.preference_monitors import PreferenceMonitor, Scores

YES = torch.tensor([True, True])


def scores(*, shift: float = 0.0) -> Scores:
    """Two sequences with two and one scored tokens; the policy is `shift` nats a token above the reference."""
    scored = torch.tensor([[False, True, False, True], [False, False, True, False]])
    reference = torch.where(scored, torch.tensor([[0.0, -1.0, 0.0, -2.0], [0.0, 0.0, -3.0, 0.0]]), 0.0)
    return Scores(torch.where(scored, reference + shift, 0.0), reference, scored)


def test_a_window_has_the_means_of_all_its_batches_with_the_sides_apart() -> None:
    monitor = PreferenceMonitor()
    monitor.add_scores("chosen", scores(shift=0.5), YES)
    monitor.add_scores("rejected", scores(shift=-1.0), YES)
    monitor.add_scores("chosen", scores(shift=-1.5), torch.tensor([True, False]))
    window = monitor.window()
    # Sums of logprobs: (-3 + 1, -3 + 0.5, -3 - 3) for chosen, (-5, -4) for rejected.
    assert window["logprobs/chosen"] == pytest.approx((-2 - 2.5 - 6) / 3)
    assert window["logprobs/rejected"] == pytest.approx(-4.5)
    assert window["log_ratio/chosen"] == pytest.approx((1 + 0.5 - 3) / 3)
    assert window["log_ratio/rejected"] == pytest.approx(-1.5)
    assert window["tokens/chosen"] == pytest.approx(5 / 3)
    # Three tokens at 0.5, three at -1, two at -1.5: half the mean square.
    assert window["kl_to_reference"] == pytest.approx((3 * 0.25 + 3 * 1 + 2 * 2.25) / 8 / 2)
    # Every scored token of these sequences is the last of its run.
    assert window["end_log_ratio"] == pytest.approx((1.5 - 3 - 3) / 8)
    assert monitor.window() == {}
    assert monitor.history == [window]


def test_the_correlation_of_margin_and_length_is_pearsons() -> None:
    generator = np.random.default_rng(0)
    margins, longer = generator.normal(size=30), generator.integers(-5, 6, size=30)
    monitor = PreferenceMonitor()
    for part in (slice(0, 7), slice(7, 30)):
        monitor.add_margins(torch.tensor(margins[part]), torch.tensor(longer[part]))
    window = monitor.window()
    assert window["margin_length_correlation"] == pytest.approx(np.corrcoef(margins, longer)[0, 1])
    assert window["reward/accuracy"] == pytest.approx((margins > 0).mean())
    assert window["reward/margin"] == pytest.approx(margins.mean())
    assert not [name for name in window if name.startswith("_")]


def test_processes_are_added_up_before_the_means_are_taken() -> None:
    """Three times the same sums leave the means as they are; a process that saw nothing changes nothing."""
    monitor = PreferenceMonitor(lambda sums: 3 * sums)
    monitor.add_scores("chosen", scores(shift=0.5), YES)
    assert monitor.window()["logprobs/chosen"] == pytest.approx(-2.25)
    monitor.add_scores("chosen", scores(), torch.tensor([False, False]))
    assert monitor.window() == {}


def test_chosen_answers_that_fall_are_warned_about_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    monitor = PreferenceMonitor()
    with caplog.at_level(logging.WARNING):
        for shift in (0.0, -0.9, -0.9):
            monitor.add_scores("chosen", scores(shift=shift), YES)
            monitor.window()
    assert [record.message for record in caplog.records if "become less likely" in record.message] == [
        "chosen answers become less likely than they were (mean log-ratio -1.35 nats): what is learned is to avoid "
        "the rejected ones, whatever comes instead; set chosen_nll_weight, a larger beta or a smaller learning_rate"
    ]
    assert monitor.alarms == {"chosen_falls": 2, "length_drift": 2}


def test_divergence_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    monitor = PreferenceMonitor()
    monitor.add_scores("desirable", scores(shift=1.2), YES)
    with caplog.at_level(logging.WARNING):
        monitor.window()
    assert monitor.alarms == {"divergence": 1}
    assert "far from the reference (0.72 nats a token" in caplog.text


def test_the_end_is_the_last_quarter() -> None:
    monitor = PreferenceMonitor()
    for shift in range(8):
        kind = "desirable" if shift != 7 else "undesirable"
        monitor.add_scores(kind, scores(shift=float(shift)), YES)
        monitor.window()
    end = monitor.at_the_end()
    assert end["log_ratio/desirable"] == pytest.approx(1.5 * 6)
    assert end["log_ratio/undesirable"] == pytest.approx(1.5 * 7)
    assert end["kl_to_reference"] == pytest.approx((36 + 49) / 2 / 2)
