"""Configuration of online GRPO."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from offline_arl.online.rows import Gate
from offline_arl.rollouts.backends import Backend
from offline_arl.rollouts.collect import Schedule
from offline_arl.rollouts.sync import FLOAT32_TOLERANCE
from offline_arl.warmstart import MINIMUM_SUCCESS, MINIMUM_TASKS

LossType = Literal["grpo", "bnpo", "dapo", "dr_grpo"]
Baseline = Literal["mean", "leave_one_out"]
Deviation = Literal["sample", "population", "none"]


# Settings that change nothing about the weights that a run ends with: it may go on under others.
OF_NO_CONSEQUENCE = frozenset({"save_every", "restarts", "servers", "served_model", "rollout_schedule"})


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CurriculumConfig(_Frozen):
    """Which tasks are drawn: those whose groups can teach, by the variance p (1 - p) of success at estimate p.

    The estimates start from the success of each task type in the first validation, and with a critic from what it
    predicts for each task. With `levels` above 1 tasks are sorted by predicted success; training starts with the
    easiest part and is promoted to the next once sampled validation success, on validation tasks of the open levels,
    reaches `promote_at`.
    """

    floor: PositiveFloat = 0.05  # added to the variance, so that solved and hopeless tasks still come up
    memory: float = Field(default=0.9, ge=0, lt=1)  # of the running success of a task type, a group
    levels: PositiveInt = Field(default=1, examples=[3])
    promote_at: float = Field(default=0.7, gt=0, le=1)
    patience: PositiveInt = 3  # validations after which the next level opens in any case


class GateConfig(_Frozen):
    """When a warm start is good enough; see `warmstart.check_gate`."""

    minimum_success: float = Field(default=MINIMUM_SUCCESS, ge=0, le=1, examples=[0.2])
    minimum_tasks: PositiveInt = MINIMUM_TASKS


class TurnAdvantageConfig(_Frozen):
    """How the critic of the warm start tells the steps of an episode apart.

    The advantage of a token is (1 - weight) times that of its episode in its group plus weight times the generalized
    advantage estimate of its step under the critic's V, divided by the root mean square of the batch. No mean is taken
    off and nothing is normalized by step number: both would make the advantage of a step depend on how long others
    took.
    """

    weight: float = Field(default=0.5, ge=0, le=1)  # 0: the group alone; 1: the critic alone, as in PPO
    discount: float = Field(default=1.0, gt=0, le=1)  # a step
    trace_decay: float = Field(default=0.95, ge=0, le=1)  # lambda; 1: return minus V
    updates: NonNegativeInt = 20  # of the critic after each step, on its episodes; 0: the offline critic as it is
    batch_size: PositiveInt = 256  # transitions an update
    learning_rate: PositiveFloat = 3e-4


class CloningConfig(_Frozen):
    """Logged successes as a cloning term beside the policy's loss, never inside a group's mean.

    Rows of tasks whose group had no success in this step come first, then rows at random. A token whose behavior
    logprob was logged is weighted by min(policy : behavior, `importance_cap`); the others are cloned with weight 1.

    `own_rows`: so many rows an update beside them, of the policy's own successes in groups of which at most half
    succeeded (`own_successes`); the latest `own_capacity` are kept.
    """

    coefficient: PositiveFloat = 0.05  # of nats a token
    rows: PositiveInt = 32  # logged segments an update
    own_rows: int = Field(default=0, ge=0)
    own_capacity: PositiveInt = 2_000
    until: float = Field(default=1.0, gt=0, le=1)  # share of the run over which the coefficient falls to 0, linearly
    importance_cap: float = Field(default=1.0, ge=1)


class LoraConfig(_Frozen):
    """Train low-rank adapters of all linear layers; the policy that is saved has them merged."""

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    dropout: float = Field(default=0.0, ge=0, lt=1)


class LengthConfig(_Frozen):
    """A soft limit on sampled tokens: an episode loses `penalty` linearly between `free` tokens and `limit` (DAPO)."""

    free: PositiveInt = Field(examples=[200])
    limit: PositiveInt = Field(examples=[400])
    penalty: PositiveFloat = 0.5

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.limit <= self.free:
            raise ValueError(f"limit ({self.limit}) has to be above free ({self.free})")
        return self


class MismatchConfig(_Frozen):
    """What is done where trainer and sampler disagree on a token that was sampled.

    "refuse" ends the training where the checked episodes differ by more than `tolerance`. "correct" weighs every token
    by the ratio trainer : sampler, of the token or, with level "sequence", of its whole episode. "truncate" sets ratios
    above `cap` to it; "mask" leaves out what is above `cap` or below `floor`.
    """

    on_mismatch: Literal["refuse", "correct"] = "refuse"
    tolerance: PositiveFloat = FLOAT32_TOLERANCE  # nats a token; about 0.1 suits bfloat16
    level: Literal["token", "sequence"] = "token"
    bound: Literal["truncate", "mask"] = "truncate"
    cap: float = Field(default=2.0, ge=1)
    floor: float = Field(default=0.5, ge=0, le=1)
    check_first: NonNegativeInt = 3  # the first weight syncs are all verified ...
    check_every: PositiveInt = 10  # ... and then one in so many
    check_episodes: PositiveInt = 8


class StopConfig(_Frozen):
    """When training ends before its steps are done; the state is saved, and a later run goes on from it."""

    # A budget: the step that exceeds it is the last; learning rate and cloning are down by then, as after all steps.
    environment_steps: PositiveInt | None = Field(default=None, examples=[50_000])
    patience: PositiveInt | None = None  # validations without a better policy; None: never
    # Steps in a row in which no group taught anything, or over which half of the success was lost; a loss that is not
    # finite stops at once. None: nothing that goes wrong stops the training.
    dead_steps: PositiveInt | None = 10


class GrpoConfig(_Frozen):
    """How to train online. One step samples `prompts_per_step * group_size` episodes and makes
    `updates_per_step * minibatches` updates on them.

    The defaults are those of a policy of 1 M parameters on a CPU; for models of billions: `learning_rate` 5e-7 to
    1e-6, `dtype` bfloat16, `mismatch` {on_mismatch: correct, tolerance: 0.1}.
    """

    steps: PositiveInt = 60
    group_size: int = Field(default=8, ge=2)
    prompts_per_step: PositiveInt = 16
    updates_per_step: PositiveInt = 1  # epochs over the episodes of a step
    minibatches: PositiveInt = 1  # an epoch's updates, each on so large a part of the episodes
    reuse_limit: PositiveFloat = 0.1  # |log ratio| a token beyond which a step's other updates are left out
    refill_rounds: NonNegativeInt = 0  # times that idle groups are replaced by groups of other tasks
    optimizer: Literal["adamw", "muon"] = "adamw"  # muon: for small policies trained from scratch, as offline
    learning_rate: PositiveFloat = 5e-4
    warmup_steps: NonNegativeInt = 5  # without, Adam's first updates move a good policy far
    schedule: Literal["constant_with_warmup", "linear", "cosine"] = "linear"
    max_gradient_norm: PositiveFloat = 1.0
    kl_coefficient: NonNegativeFloat = 0.02  # on the k3 estimate of KL(policy || warm start), a token
    loss_type: LossType = "dapo"  # how token losses are averaged; dr_grpo: by a constant
    baseline: Baseline = "mean"  # leave_one_out: RLOO
    deviation: Deviation = "sample"  # that advantages are divided by; none: Dr. GRPO
    importance_level: Literal["token", "sequence"] = "token"  # sequence: GSPO
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2  # above clip_low: DAPO's "clip higher"
    group_gate: Gate = "outcome"  # a group teaches where its attempts differ in this
    entropy_coefficient: NonNegativeFloat = 0.0
    length: LengthConfig | None = None
    temperature: PositiveFloat = 1.0
    max_tokens_per_step: PositiveInt = 64
    max_total_tokens: PositiveInt = 1024
    rows_per_batch: PositiveInt = 128  # episodes a backward pass; fewer need less memory
    turn_advantages: TurnAdvantageConfig = TurnAdvantageConfig()  # used with a critic
    cloning: CloningConfig = CloningConfig()  # used with logged successes
    curriculum: CurriculumConfig | None = None
    gate: GateConfig | None = GateConfig()  # needs validation tasks; None: start whatever the policy is worth
    stop: StopConfig = StopConfig()
    mismatch: MismatchConfig = MismatchConfig()
    lora: LoraConfig | None = None
    validation_every: PositiveInt = 10  # steps
    full_validation_every: PositiveInt | None = None  # validations; None: each one is on all validation tasks
    small_validation: PositiveInt = 50  # tasks of the others, see `Validator`
    save_every: PositiveInt = 10  # steps between states from which a killed run goes on
    restarts: NonNegativeInt = 2  # of a sampler that fails
    dtype: Literal["float32", "bfloat16"] = "float32"
    backend: Backend = "auto"
    rollout_schedule: Schedule = "lockstep"  # continuous: a slow tool holds up its own episode alone
    servers: tuple[str, ...] = ()  # vLLM servers (URLs) that sample in place of an engine in this process
    served_model: str = "policy"  # its name on the servers

    @property
    def step_updates(self) -> int:
        """Updates of one step."""
        return self.updates_per_step * self.minibatches

    @property
    def total_updates(self) -> int:
        """Updates of the whole run."""
        return self.steps * self.step_updates

    def share_done(self, step: int, environment_steps: int) -> float:
        """How much of the run is done, in [0, 1]: the larger share of its steps and of its environment steps."""
        budget = self.stop.environment_steps
        return min(max(step / self.steps, environment_steps / budget if budget else 0.0), 1.0)
