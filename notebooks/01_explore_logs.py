# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Explore agent logs
#
# What is in a folder of agent logs, where do the agents succeed, and what does a failure look like?
#
# The store is a folder of Parquet, so polars answers questions about it without parsing messages:
# `store.trajectories` has one row an attempt, `store.steps` one row a message of the agent. Both are lazy frames:
# nothing is read until `.collect()`.
#
# The logs here are made by scripted agents of a support desk. For your own, set `SOURCE` to a file or folder and leave
# out the cell that writes it. Attempts without a task type are shown as `(none)`; a question that the logs have no
# attempts for gives an empty table or picture.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import offline_arl
from offline_arl import environments
from offline_arl.evaluation.intervals import bootstrap_mean, wilson_interval
from offline_arl.rewards.components import RewardConfig, step_rewards
from offline_arl.workflows.ingest import ingest

folder = Path(tempfile.mkdtemp(prefix="explore_logs_"))
SOURCE = folder / "logs.jsonl"

# %%
environments.load("support_desk").write_logs(SOURCE, 400, seed=0)

# %% [markdown]
# ## Into a store
#
# Every record is accounted for: it became a trajectory, is in quarantine with a reason, was there already, or is no
# interaction.

# %%
report = ingest(SOURCE, folder / "store")
report

# %%
store = offline_arl.open_store(folder / "store")
store.trajectories.head(5).collect()

# %% [markdown]
# ## One attempt
#
# A long attempt that failed is a good place to begin reading.

# %%
failed = store.trajectories.filter((pl.col("status") == "scored") & ~pl.col("success"))
# Logs without a failure: the longest of all.
attempts = store.trajectories if failed.head(1).collect().is_empty() else failed
longest = attempts.sort("n_steps", descending=True).head(1).collect()
trajectory = store.get(longest["trajectory_id"].item())

for message in trajectory.messages:
    calls = "".join(f" → {call.name}({call.arguments_raw})" for call in message.tool_calls)
    print(f"{message.role:>9}: {message.text}{calls}")
print(f"  outcome: {trajectory.outcome}")

# %% [markdown]
# ## Success by task type
#
# Only attempts with a verdict count: one whose harness crashed is not a failure of the agent, and one with a score
# but no `success` is neither. The intervals are Wilson's, 95 %.

# %%
by_type = (
    store.trajectories.filter((pl.col("status") == "scored") & pl.col("success").is_not_null())
    .group_by(pl.col("task_type").fill_null("(none)"))
    .agg(pl.col("success").sum().alias("successes"), pl.len().alias("attempts"), pl.col("n_steps").mean())
    .sort("task_type")
    .collect()
)
estimates = [wilson_interval(row["successes"], row["attempts"]) for row in by_type.iter_rows(named=True)]
by_type.with_columns(success=pl.col("successes") / pl.col("attempts"))

# %%
figure, axis = plt.subplots(figsize=(7, 3))
heights = [estimate.estimate for estimate in estimates]
below = [estimate.estimate - estimate.low for estimate in estimates]
above = [estimate.high - estimate.estimate for estimate in estimates]
axis.bar(by_type["task_type"].to_list(), heights, yerr=[below, above], capsize=4, color="tab:blue", alpha=0.8)
axis.set(ylabel="success", ylim=(0, 1), title="Success by task type, with 95 % intervals")
figure.tight_layout()

# %% [markdown]
# ## Returns
#
# The return of an attempt is what its steps earn together: its outcome at the end, less a penalty for each step with
# an invalid action. It tells apart attempts that success alone does not.

# %%
config = RewardConfig()
returns = pl.DataFrame(
    [
        {"task_type": attempt.task_type or "(none)", "return": sum(rewards)}
        for attempt in store.iter_trajectories()
        if (rewards := step_rewards(attempt, config)) is not None
    ],
    schema={"task_type": pl.String, "return": pl.Float64},
)
figure, axis = plt.subplots(figsize=(7, 3))
types = returns["task_type"].unique().sort().to_list()
generator = np.random.default_rng(0)
for position, name in enumerate(types):
    values = returns.filter(pl.col("task_type") == name)["return"].to_numpy()
    mean = bootstrap_mean(values, generator=generator)
    axis.scatter(position + generator.uniform(-0.3, 0.3, len(values)), values, s=6, alpha=0.3, color="tab:blue")
    error = [[mean.estimate - mean.low], [mean.high - mean.estimate]]
    axis.errorbar(position, mean.estimate, yerr=error, fmt="o", capsize=4, color="black")
axis.set(xticks=range(len(types)), xticklabels=types, ylabel="return", title="Returns, with mean and 95 % interval")
figure.tight_layout()

# %% [markdown]
# ## Lengths
#
# How many messages the agent needs, and how that differs between attempts that succeed and those that do not.

# %%
lengths = store.trajectories.select(pl.col("task_type").fill_null("(none)"), "success", "n_steps").collect()
types = lengths["task_type"].unique().sort().to_list()
bins = np.arange(0.5, lengths["n_steps"].max() + 1)
figure, axes = plt.subplots(1, len(types), figsize=(2.2 * len(types), 2.6), sharey=True, squeeze=False)
for axis, name in zip(axes[0], types, strict=True):
    attempts = lengths.filter(pl.col("task_type") == name)
    values = [attempts.filter(pl.col("success") == success)["n_steps"].to_numpy() for success in (True, False)]
    axis.hist(values, bins=bins, stacked=True, label=["success", "failure"], color=["tab:green", "tab:orange"])
    axis.set(title=name, xlabel="steps")
axes[0, 0].set_ylabel("attempts")
axes[0, -1].legend()
figure.tight_layout()

# %% [markdown]
# ## What goes wrong
#
# The step table knows which calls the tools in force would not have accepted, and why.

# %%
(
    store.steps.filter(pl.col("invalid_action"))
    .join(store.trajectories.select("trajectory_id", "task_type", "success"), on="trajectory_id")
    .group_by("problem")
    .agg(
        pl.len().alias("steps"),
        pl.col("trajectory_id").n_unique().alias("attempts"),
        pl.col("success").mean().alias("success of these attempts"),
    )
    .sort("steps", descending=True)
    .collect()
)
