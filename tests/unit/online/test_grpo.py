"""Online GRPO end to end on a toy task, with the transformers sampler: what it promises, step by step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from toys.lookup import LookupFamily, demonstrations, task
from toys.online_runs import HandedOut
from toys.online_runs import config as small_config

from offline_arl.datasets.return_conditioning import fit_conditioning, load_conditioning
from offline_arl.environments.protocol import Task
from offline_arl.errors import DataError, GateError, TemplateError, UsageError
from offline_arl.models.policy import load_policy, policy_fingerprint, save_policy
from offline_arl.models.tiny import CHAT_TEMPLATE
from offline_arl.online.config import (
    CurriculumConfig,
    GateConfig,
    GrpoConfig,
    LoraConfig,
    MismatchConfig,
    StopConfig,
)
from offline_arl.online.grpo import GrpoResult, train_grpo
from offline_arl.online.records import mean
from offline_arl.online.trl_trainer import OnlineTrainer
from offline_arl.rendering import Renderer
from offline_arl.rendering.return_conditioning import ConditioningConfig
from offline_arl.rewards.components import RewardConfig
from offline_arl.rollouts.episode import Episode
from offline_arl.trajectories.schema import Outcome
from offline_arl.warmstart import WarmStart

FAMILY = LookupFamily()
TRAIN = FAMILY.tasks("train", 100, seed=0)
VALIDATION = FAMILY.tasks("validation", 30, seed=0)


def config(**fields: Any) -> GrpoConfig:
    gate = GateConfig(minimum_success=0.2, minimum_tasks=30)
    return small_config(**{"steps": 2, "validation_every": 10, "save_every": 10, "gate": gate, **fields})


def run(policy: Path, output: Path, settings: GrpoConfig, tasks: list[Task] = TRAIN, **fields: Any) -> GrpoResult:
    return train_grpo(policy, FAMILY, tasks, settings, output, seed=fields.pop("seed", 0), **fields)


@pytest.fixture(scope="module")
def trained(lookup_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[GrpoResult, list[list[Episode]]]:
    """Three steps with validation, and the episodes that were handed out."""
    handed = HandedOut()
    result = run(
        lookup_policy,
        tmp_path_factory.mktemp("grpo"),
        config(steps=3, validation_every=2, mismatch={"check_first": 1, "check_every": 2}),
        validation_tasks=VALIDATION,
        expected_fingerprint=WarmStart.from_policy(lookup_policy).policy_fingerprint,
        episodes=handed,
    )
    return result, handed.steps


def test_the_kl_to_the_warm_start_is_zero_at_step_zero(trained: tuple[GrpoResult, Any]) -> None:
    kls = [record.kl for record in trained[0].history]
    assert kls[0] == 0.0
    assert kls[1] is not None
    assert kls[1] > 0.0


def test_the_sampler_runs_the_trainers_weights(trained: tuple[GrpoResult, Any]) -> None:
    """Checked at the first sync and then at every second one: before updates 0 and 2."""
    result = trained[0]
    assert [record.sync_difference is not None for record in result.history] == [True, False, True]
    assert all(report.max_abs_difference < 1e-4 and report.n_tokens > 10 for report in result.sync_reports)


def test_start_and_end_are_validated_and_the_best_is_kept(trained: tuple[GrpoResult, Any]) -> None:
    result = trained[0]
    assert [validation.step for validation in result.validations] == [0, 2, 3]
    assert result.start == result.validations[0]
    allowed = [found for found in result.validations if found.greedy >= result.validations[0].greedy]
    assert result.best is not None
    assert result.best.greedy + result.best.sampled == max(found.greedy + found.sampled for found in allowed)


def test_the_saved_policy_loads_and_steps_are_on_disk(trained: tuple[GrpoResult, Any]) -> None:
    result = trained[0]
    model, tokenizer = load_policy(result.policy_path)
    assert model.config.vocab_size >= len(tokenizer)
    assert not list(result.policy_path.glob("*.bin"))
    lines = [json.loads(line) for line in (result.policy_path.parent / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == [
        "setup", "validation", "step", "step", "validation", "step", "validation",
    ]  # fmt: skip
    assert set(result.seconds) == {"rollout", "sync", "train", "validation"}


def test_episodes_are_handed_out_as_trajectories(trained: tuple[GrpoResult, list[list[Episode]]]) -> None:
    handed = trained[1]
    assert [len(episodes) for episodes in handed] == [16, 16, 16]
    ids = {episode.trajectory.trajectory_id for episodes in handed for episode in episodes}
    assert len(ids) == 48
    assert {episode.trajectory.model for episode in handed[1]} == {"grpo-step-1"}
    for start in range(0, 16, 4):
        assert len({episode.trajectory.group_id for episode in handed[0][start : start + 4]}) == 1


def test_the_random_state_is_left_alone_and_runs_repeat(lookup_policy: Path, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    first = run(lookup_policy, tmp_path / "a", config())
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    second = run(lookup_policy, tmp_path / "b", config())
    third = run(lookup_policy, tmp_path / "c", config(), seed=1)
    prints = [policy_fingerprint(load_policy(result.policy_path)[0]) for result in (first, second, third)]
    assert prints[0] == prints[1]
    assert prints[0] != prints[2]
    assert (first.best, first.start, first.validations) == (None, None, [])


def test_where_every_group_is_alike_nothing_is_learned(lookup_policy: Path, tmp_path: Path) -> None:
    """A judge that is always away: no episode has a return, so the weights do not move at all."""
    broken = [task(item.payload["key"], "A", fail="step") for item in TRAIN]
    result = run(lookup_policy, tmp_path, config(), broken)
    assert [record.idle_groups for record in result.history] == [1.0, 1.0]
    assert [record.infrastructure_errors for record in result.history] == [16, 16]
    assert {found.kind for found in result.findings} >= {"environment"}
    before, after = (policy_fingerprint(load_policy(path)[0]) for path in (lookup_policy, result.policy_path))
    assert before == after


def test_the_start_is_kept_where_training_makes_it_worse(lookup_policy: Path, tmp_path: Path) -> None:
    """A learning rate that destroys the policy: what is saved is the warm start, bit for bit."""
    settings = config(steps=3, learning_rate=0.3, kl_coefficient=0.0, validation_every=3)
    result = run(lookup_policy, tmp_path, settings, validation_tasks=VALIDATION)
    assert result.validations[-1].greedy < result.validations[0].greedy
    assert result.best == result.start
    assert result.history[0].kl is None
    before, after = (policy_fingerprint(load_policy(path)[0]) for path in (lookup_policy, result.policy_path))
    assert before == after


def test_the_gate_refuses_a_policy_that_hardly_succeeds(lookup_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(GateError, match="needs 99%"):
        run(
            lookup_policy,
            tmp_path,
            config(gate=GateConfig(minimum_success=0.99, minimum_tasks=30)),
            validation_tasks=VALIDATION,
        )
    with pytest.raises(GateError, match=r"needs 100 validation tasks, and there are 30; .* gate\.minimum_tasks=30"):
        run(lookup_policy, tmp_path, config(gate=GateConfig()), validation_tasks=VALIDATION)


def test_other_weights_than_those_of_the_warm_start_are_refused(lookup_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not those the warm start was made of"):
        run(lookup_policy, tmp_path, config(), expected_fingerprint="something else")


def test_a_template_that_rewrites_turns_is_refused_with_a_remedy(lookup_policy: Path, tmp_path: Path) -> None:
    _, tokenizer = load_policy(lookup_policy)
    template = CHAT_TEMPLATE.replace(
        "{{- message.content or '' -}}", "{{- (message.content or '') if loop.last else '...' -}}"
    )
    with pytest.raises(TemplateError, match=r"TRL ships no training variant .* chat_template="):
        run(lookup_policy, tmp_path, config(), renderer=Renderer(tokenizer, chat_template=template))


def test_stale_weights_stop_the_training(lookup_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from offline_arl.rollouts.transformers_sampler import TransformersSampler

    monkeypatch.setattr(TransformersSampler, "load_weights", lambda self, weights: None)
    with pytest.raises(GateError, match="stale"):
        run(lookup_policy, tmp_path, config(learning_rate=1e-2))


def test_a_mismatch_is_corrected_on_request(lookup_policy: Path, tmp_path: Path) -> None:
    """A tolerance of 1e-12 nats is always exceeded: training goes on with importance weights near 1."""
    exact = run(lookup_policy, tmp_path / "a", config())
    corrected = run(lookup_policy, tmp_path / "b", config(mismatch={"tolerance": 1e-12, "on_mismatch": "correct"}))
    for one, other in zip(exact.history, corrected.history, strict=True):
        assert other.loss == pytest.approx(one.loss, abs=1e-3)
        assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-2)


def test_untied_embeddings_train_and_sync(lookup_policy: Path, tmp_path: Path) -> None:
    model, tokenizer = load_policy(lookup_policy)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().clone())
    save_policy(model, tokenizer, tmp_path / "untied")
    result = run(tmp_path / "untied", tmp_path / "out", config(mismatch={"check_first": 3}))
    assert len(result.sync_reports) == 2
    trained, _ = load_policy(result.policy_path)
    assert not torch.equal(trained.lm_head.weight, trained.model.embed_tokens.weight)


def test_a_curriculum_and_dr_grpo_run(lookup_policy: Path, tmp_path: Path) -> None:
    settings = config(loss_type="dr_grpo", curriculum=CurriculumConfig(), entropy_coefficient=0.01)
    result = run(lookup_policy, tmp_path, settings)
    assert next(record.kl for record in result.history) == 0.0


def test_wrong_arguments_are_refused_before_anything_runs(lookup_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in training and validation"):
        run(lookup_policy, tmp_path, config(), validation_tasks=TRAIN[:3])
    with pytest.raises(UsageError, match="attempts 4 tasks and there are 2"):
        run(lookup_policy, tmp_path, config(), TRAIN[:2])
    with pytest.raises(UsageError, match="cannot load the tokenizer"):
        run(tmp_path / "nothing", tmp_path, config())
    with pytest.raises(ValueError, match="extra"):
        GrpoConfig(beta=0.1)  # type: ignore[call-arg]


def test_a_policy_that_reads_returns_is_asked_for_the_best_and_still_reads_them_afterwards(
    lookup_policy: Path, tmp_path: Path
) -> None:
    policy = tmp_path / "dt"
    shutil.copytree(lookup_policy, policy)
    attempt = demonstrations(1, accuracy=1.0, seed=0)[0]
    scored = msgspec.structs.replace(attempt, outcome=Outcome("scored", success=True))
    writes = ConditioningConfig(form="number", scope="trajectory")
    conditioning = fit_conditioning([scored], rewards=RewardConfig(), config=writes)
    conditioning.save(policy)
    handed = HandedOut()
    result = run(policy, tmp_path / "grpo", config(steps=1), episodes=handed)
    _, tokenizer = load_policy(policy)
    (episodes,) = handed.steps
    assert len(episodes) == 16
    assert all("[return 1.00]" in tokenizer.decode(episode.token_ids) for episode in episodes)
    assert load_conditioning(result.policy_path) == conditioning


def test_adapters_train_and_are_merged_into_what_is_saved(lookup_policy: Path, tmp_path: Path) -> None:
    """The reference is the policy without them: KL 0 at first. The sampler runs the merged weights."""
    settings = config(steps=3, lora=LoraConfig(rank=2), mismatch=MismatchConfig(check_first=3))
    result = run(lookup_policy, tmp_path, settings)
    assert result.history[0].kl == 0.0
    assert result.history[2].kl is not None
    assert result.history[2].kl > 0.0
    assert max(report.max_abs_difference for report in result.sync_reports) < 1e-4
    before, after = (load_policy(path)[0].state_dict() for path in (lookup_policy, result.policy_path))
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all(name.endswith("proj.weight") for name in moved)


def test_episodes_are_used_again_until_the_policy_has_moved_too_far(lookup_policy: Path, tmp_path: Path) -> None:
    """With a limit of next to nothing, the second and third update of each step are left out: as if there were none."""
    once = run(lookup_policy, tmp_path / "once", config(steps=2, schedule="constant_with_warmup"))
    again = {"updates_per_step": 3, "schedule": "constant_with_warmup"}
    held = run(lookup_policy, tmp_path / "held", config(steps=2, reuse_limit=1e-9, **again))
    free = run(lookup_policy, tmp_path / "free", config(steps=2, reuse_limit=10.0, **again))
    assert once.history[0].ratio_drift is None
    assert held.history[0].ratio_drift is not None
    assert free.history[0].ratio_drift is not None
    assert free.history[0].ratio_drift > 0.0
    models = [load_policy(result.policy_path)[0] for result in (once, held, free)]
    distances = [
        sum(float((a - b).abs().sum()) for a, b in zip(models[0].parameters(), model.parameters(), strict=True))
        for model in models[1:]
    ]
    # The drift is known after the second update, so the third is left out.
    assert distances[0] < distances[1]


def test_each_minibatch_is_an_update_of_its_own(
    lookup_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 episodes in 4 parts, twice: 8 updates a step, and each epoch reads every episode once."""
    seen: list[tuple[int, int, float]] = []  # (update, rows, sum of their advantages)
    inner = OnlineTrainer._compute_loss

    def spied(self: OnlineTrainer, model: Any, inputs: dict[str, Any]) -> Any:
        advantages = inputs["advantages"].abs() * inputs["completion_mask"]
        seen.append((int(self.state.global_step), len(advantages), float(advantages.sum())))
        return inner(self, model, inputs)

    monkeypatch.setattr(OnlineTrainer, "_compute_loss", spied)
    settings = config(steps=2, minibatches=4, updates_per_step=2, rows_per_batch=2, reuse_limit=10.0)
    result = run(lookup_policy, tmp_path, settings)
    assert [update for update, _, _ in seen] == [update for update in range(16) for _ in range(2)]
    assert {rows for _, rows, _ in seen} == {2}
    for step in range(2):
        first, second = ([total for _, _, total in seen[begin : begin + 8]] for begin in (16 * step, 16 * step + 8))
        assert sum(first) > 0
        assert sorted(first) == sorted(second)
    assert result.history[0].ratio_drift is not None
    assert result.history[0].mismatch is not None
    assert result.history[0].mismatch < 1e-4  # measured before the first update, not after it


def test_minibatches_are_equal_parts(lookup_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="16 episodes of a step cannot be cut into 3 equal minibatches"):
        run(lookup_policy, tmp_path, config(minibatches=3))


@pytest.mark.parametrize(("optimizer", "is_orthogonal"), [("muon", True), ("adamw", False)])
def test_muon_moves_hidden_matrices_in_all_directions_alike(
    lookup_policy: Path, tmp_path: Path, optimizer: str, is_orthogonal: bool
) -> None:
    """The largest singular values of Muon's update lie close together, where those of AdamW's are far apart."""
    result = run(lookup_policy, tmp_path, config(steps=1, optimizer=optimizer))
    before, after = (load_policy(path)[0].state_dict() for path in (lookup_policy, result.policy_path))
    name = "model.layers.0.self_attn.o_proj.weight"
    values = torch.linalg.svdvals(after[name] - before[name])
    assert (float(values[0] / values[5]) < 1.5) is is_orthogonal


def test_a_sampler_that_fails_is_started_again(
    lookup_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies in the middle of the second step; the run ends as if nothing had happened."""
    from offline_arl.rollouts.transformers_sampler import TransformersSampler

    straight = run(lookup_policy, tmp_path / "straight", config(steps=3))
    generate, calls = TransformersSampler.generate, []

    def failing(self: TransformersSampler, *arguments: Any, **fields: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise RuntimeError("EngineCore died")
        return generate(self, *arguments, **fields)

    monkeypatch.setattr(TransformersSampler, "generate", failing)
    failed = run(lookup_policy, tmp_path / "failed", config(steps=3))
    assert len(calls) > 5
    assert [record.loss for record in failed.history] == [record.loss for record in straight.history]


def test_a_sampler_that_fails_for_good_leaves_the_state(
    lookup_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from offline_arl.rollouts.transformers_sampler import TransformersSampler

    settings = config(steps=4, save_every=1, restarts=1)
    straight = run(lookup_policy, tmp_path / "straight", settings)
    generate, calls = TransformersSampler.generate, []

    def dead(self: TransformersSampler, *arguments: Any, **fields: Any) -> Any:
        calls.append(1)
        if len(calls) > 6:
            raise RuntimeError("EngineCore died")
        return generate(self, *arguments, **fields)

    with monkeypatch.context() as patch:
        patch.setattr(TransformersSampler, "generate", dead)
        with pytest.raises(DataError, match=r"failed 2 times.*the same command goes on"):
            run(lookup_policy, tmp_path / "failed", settings)
    resumed = run(lookup_policy, tmp_path / "failed", settings)
    assert [record.loss for record in resumed.history] == [record.loss for record in straight.history]


def test_training_stops_where_validation_finds_nothing_better(lookup_policy: Path, tmp_path: Path) -> None:
    settings = config(
        steps=8, learning_rate=0.3, kl_coefficient=0.0, validation_every=1, stop=StopConfig(patience=2, dead_steps=None)
    )
    result = run(lookup_policy, tmp_path, settings, validation_tasks=VALIDATION)
    assert result.stopped is not None
    assert "no better policy in 2 validations" in result.stopped
    assert len(result.history) < 8


def test_a_warm_start_in_float32_trains_in_half_precision(lookup_policy: Path, tmp_path: Path) -> None:
    """The weights are compared as the warm start knows them; those of another policy are refused here, too."""
    settings = config(steps=1, dtype="bfloat16", mismatch={"on_mismatch": "correct", "tolerance": 0.1})
    expected = WarmStart.from_policy(lookup_policy).policy_fingerprint
    result = run(lookup_policy, tmp_path / "half", settings, expected_fingerprint=expected)
    assert result.history[0].kl == pytest.approx(0.0, abs=1e-4)
    with pytest.raises(DataError, match="not those the warm start was made of"):
        run(lookup_policy, tmp_path / "other", settings, expected_fingerprint="0" * 64)


def test_what_falls_over_a_run_is_down_when_its_budget_is_used(lookup_policy: Path, tmp_path: Path) -> None:
    """32 environment steps a step: a budget of 128 ends 40 steps after 4; each takes a quarter of the learning rate."""
    by_steps = run(lookup_policy, tmp_path / "steps", config(steps=4, learning_rate=1e-4))
    settings = config(steps=40, learning_rate=1e-4, stop=StopConfig(environment_steps=128))
    by_budget = run(lookup_policy, tmp_path / "budget", settings)
    assert by_budget.environment_steps == by_steps.environment_steps == 128
    rates = [1e-4, 0.75e-4, 0.5e-4, 0.25e-4]
    assert [record.learning_rate for record in by_steps.history] == pytest.approx(rates)
    assert [record.learning_rate for record in by_budget.history] == pytest.approx(rates)


def test_the_share_that_is_done_is_that_of_the_steps_or_of_the_budget() -> None:
    budget = GrpoConfig(steps=80, stop=StopConfig(environment_steps=1000))
    assert [budget.share_done(step, used) for step, used in ((0, 0), (20, 100), (20, 500), (60, 1500))] == [
        0,
        0.25,
        0.5,
        1,
    ]
    assert GrpoConfig(steps=80).share_done(20, 10**6) == 0.25


def test_groups_that_teach_nothing_are_replaced(lookup_policy: Path, tmp_path: Path) -> None:
    """Tasks whose judge is away make idle groups; refilled, all groups of a step are of the others."""
    broken = {item.task_id for item in TRAIN[::2]}
    tasks = [task(item.payload["key"], "A", fail="step") if item.task_id in broken else item for item in TRAIN]
    plain = run(lookup_policy, tmp_path / "plain", config(), tasks)
    refilled = run(lookup_policy, tmp_path / "refilled", config(refill_rounds=4), tasks)
    assert mean([record.idle_groups for record in plain.history]) > 0.3
    assert [record.idle_groups for record in refilled.history] == [0.0, 0.0]
    assert all(
        record.n_episodes == 16 + 4 * record.refilled_groups and record.refilled_groups > 0
        for record in refilled.history
    )
