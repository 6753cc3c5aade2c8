"""Tables of a run, from metric names."""

from __future__ import annotations

from offline_arl.workflows.summary import all_tables, counts


def metric(estimate: float | None, n: int = 300) -> dict[str, float | None]:
    spread = None if estimate is None else 0.05
    low, high = (None, None) if spread is None or estimate is None else (estimate - spread, estimate + spread)
    return {"estimate": estimate, "low": low, "high": high, "n": n}


def number(value: int) -> dict[str, float | None]:
    return dict.fromkeys(("estimate", "low", "high", "n"), value)


METRICS = {
    "trajectories": number(4000),
    "segments/bc_data": number(4100),
    "steps/behavior": metric(2.5),
    "infrastructure_errors/behavior": {"estimate": 0, "low": 0, "high": 0, "n": 300},
    "infrastructure_errors/bc": {"estimate": 0, "low": 0, "high": 0, "n": 300},
    "success_gain/iql-bc": metric(0.1),
    "success_sampled/bc": metric(0.42),
    "success/behavior": metric(0.36),
    "success/bc": metric(0.65),
    "success/behavior/refund": metric(0.5),
    "success/bc/refund": metric(0.75),
    "success/bc/status": metric(None, 0),
}


def test_outcomes_come_first_in_their_order_and_gaps_are_shown_as_such() -> None:
    titles = dict(all_tables(METRICS))
    assert list(titles) == [
        "Policies", "Gain in success over the policy before, paired over tasks", "How they act",
        "Success by task type, greedy",
    ]  # fmt: skip
    header, rows = titles["Policies"]
    assert header == ["policy", "success, greedy", "success, sampled"]
    assert rows == [
        ["bc", "0.650 [0.600, 0.700]", "0.420 [0.370, 0.470]"],
        ["behavior", "0.360 [0.310, 0.410]", "-"],
    ]
    assert titles["Gain in success over the policy before, paired over tasks"] == (
        ["pair", "greedy"],
        [["iql-bc", "0.100 [0.050, 0.150]"]],
    )


def test_how_policies_act_has_a_row_a_measure_and_none_that_is_0_for_all() -> None:
    table = dict(all_tables(METRICS))["How they act"]
    assert table == (["measure", "behavior", "bc"], [["steps", "2.500 [2.450, 2.550]", "-"]])


def test_task_types_have_a_column_a_policy_and_no_number_where_there_is_no_case() -> None:
    _, (header, rows) = all_tables(METRICS)[-1]
    assert header == ["task type", "behavior", "bc"]
    assert rows == [["refund", "0.500 [0.450, 0.550]", "0.750 [0.700, 0.800]"], ["status", "-", "-"]]


def test_counts_stay_out_of_the_tables_of_policies() -> None:
    assert counts(METRICS) == {"trajectories": 4000, "segments/bc_data": 4100}
    assert all_tables({"trajectories": number(1), "pairs/step": number(0)}) == []


def test_what_is_achieved_has_a_row_a_target_in_the_order_of_numbers() -> None:
    metrics = {
        "achieved_return/dt/10": metric(8.0),
        "achieved_return/dt/-0.5": metric(0.0),
        "achieved_return_sampled/dt/10": metric(7.0),
    }
    ((title, table),) = all_tables(metrics)
    assert title == "What is achieved under the returns that are asked for"
    assert table == (
        ["asked for", "dt, greedy", "dt, sampled"],
        [["-0.5", "0.000 [-0.050, 0.050]", "-"], ["10", "8.000 [7.950, 8.050]", "7.000 [6.950, 7.050]"]],
    )
