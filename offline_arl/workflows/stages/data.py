"""Stages before training: logs, stores, the policy to start from, datasets."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from offline_arl.datasets.copying import CopyingConfig
from offline_arl.models.tiny import TinyArchitecture
from offline_arl.rendering.return_conditioning import MAX_LEVELS, ConditioningConfig
from offline_arl.rewards.components import RewardConfig
from offline_arl.rewards.preferences import PairsConfig, UnpairedConfig
from offline_arl.workflows.stages.base import Artifact, Dtype, InputFile, Ref, Stage


class GenerateLogs(Stage):
    """Write logs of mixed quality with an environment's scripted agents, in OpenAI chat form."""

    kind: Literal["generate_logs"]
    environment: str
    trajectories: int = Field(4000, ge=1)

    produces: ClassVar[tuple[Artifact, ...]] = ("logs",)


class Ingest(Stage):
    """Read logs into a trajectory store: those of a `generate_logs` stage, or `source`.

    `outcome` names a judgement that decides success (see `offline-arl label`), for logs that are judged by
    feedback; with `outcome_threshold` a number of at least that (at most, where lower is better) is a success.
    """

    kind: Literal["ingest"]
    logs: Annotated[str | None, Ref("logs")] = None
    source: Annotated[tuple[str, ...] | str | None, InputFile()] = None
    format: str = "auto"
    engine: Literal["local", "ray"] = "local"
    workers: int = Field(1, ge=1)
    redact: bool = False
    outcome: str | None = None
    outcome_threshold: float | None = None

    produces: ClassVar[tuple[Artifact, ...]] = ("store",)
    seeded: ClassVar[bool] = False


class InitialPolicy(Stage):
    """The policy that training starts from.

    `model` is "tiny" (about 1 M parameters, its tokenizer trained on the store's text) or any Hugging Face chat
    model: a folder, or a name that is in the local cache or can be downloaded.

    `architecture`: of the tiny model (`models.tiny.build_tiny_policy`).

    `history_steps`: the policy's prompts show the system prompt and the current observation behind so many past steps,
    for tasks whose observations are states; None shows the whole chat. It is kept in the policy's tokenizer, so that
    the datasets, policies and values made from this one agree.

    `return_tokens`: tokens for classes of returns that are added to the tokenizer and the model, for datasets whose
    `conditioning.form` is quantile_tokens.
    """

    kind: Literal["initial_policy"]
    store: Annotated[str, Ref("store")]
    model: str
    vocabulary_size: int = Field(1024, ge=300)
    architecture: TinyArchitecture = "llama"
    tie_embeddings: bool = True
    history_steps: int | None = Field(None, ge=0)
    return_tokens: int = Field(0, ge=0, le=MAX_LEVELS)
    dtype: Dtype = "float32"

    produces: ClassVar[tuple[Artifact, ...]] = ("policy",)


class Dataset(Stage):
    """Tokenize the store into segments with exact action masks, for the tokenizer of `policy`.

    `splits`: only the trajectories of these splits of the store; all trajectories where there are none.
    `top_fraction`: the form filtered_bc keeps this part of the attempts, those with the highest returns under
    `rewards`, in place of the successes; 0.1 is the usual 10 % BC.
    """

    kind: Literal["dataset"]
    form: Literal["bc", "filtered_bc", "transitions", "return_conditioned"]
    store: Annotated[str, Ref("store")]
    policy: Annotated[str, Ref("policy")]
    splits: tuple[str, ...] = ()
    max_tokens: int | None = Field(1024, ge=16)  # of a segment; None: no bound
    rewards: RewardConfig = RewardConfig()
    top_fraction: float | None = Field(None, gt=0, le=1)
    conditioning: ConditioningConfig = ConditioningConfig()  # of the form return_conditioned

    produces: ClassVar[tuple[Artifact, ...]] = ("dataset",)
    seeded: ClassVar[bool] = False

    @model_validator(mode="after")
    def _check_form(self) -> Dataset:
        if self.top_fraction is not None and self.form != "filtered_bc":
            raise ValueError(f"top_fraction goes with the form filtered_bc, not {self.form}")
        return self


class PairsDataset(PairsConfig, Stage):
    """Mine pairs of a chosen and a rejected side from the store, for the tokenizer of `policy`.

    `splits` as for the other forms. `values`: value heads, for pairs of kind "value".
    """

    kind: Literal["dataset"]
    form: Literal["pairs"]
    store: Annotated[str, Ref("store")]
    policy: Annotated[str, Ref("policy")]
    values: Annotated[str | None, Ref("values")] = None
    splits: tuple[str, ...] = ()
    max_tokens: int | None = Field(1024, ge=16)  # of a side; None: no bound

    produces: ClassVar[tuple[Artifact, ...]] = ("dataset",)
    seeded: ClassVar[bool] = False


class UnpairedDataset(UnpairedConfig, Stage):
    """Label the answers of the store as desirable or not, for KTO and the tokenizer of `policy`."""

    kind: Literal["dataset"]
    form: Literal["unpaired"]
    store: Annotated[str, Ref("store")]
    policy: Annotated[str, Ref("policy")]
    splits: tuple[str, ...] = ()
    max_tokens: int | None = Field(1024, ge=16)  # of an answer with its prompt; None: no bound

    produces: ClassVar[tuple[Artifact, ...]] = ("dataset",)
    seeded: ClassVar[bool] = False


class CopyingDataset(CopyingConfig, Stage):
    """Exercises in copying for the tokenizer of `policy`: what a model of random weights has to learn before the logs.

    To be cloned by a stage of algorithm bc, whose policy is then what everything else starts from.
    """

    kind: Literal["dataset"]
    form: Literal["copying"]
    policy: Annotated[str, Ref("policy")]

    produces: ClassVar[tuple[Artifact, ...]] = ("dataset",)
