"""The stages before training: the policy to start from, and datasets in its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count as count_from
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from offline_arl.datasets.bc import BCConfig, build_bc, return_of_top_fraction
from offline_arl.datasets.copying import CopyingConfig, build_copying, identifier_tokens
from offline_arl.datasets.manifest import DatasetManifest, write_manifest
from offline_arl.datasets.return_conditioned import ReturnConditionedConfig, build_return_conditioned
from offline_arl.datasets.return_conditioning import fit_conditioning
from offline_arl.datasets.transitions import TransitionsConfig, build_transitions
from offline_arl.errors import DataError, UsageError
from offline_arl.models.embeddings import embed_new_tokens
from offline_arl.models.policy import load_policy, load_tokenizer, save_policy
from offline_arl.models.tiny import build_tiny_policy, tokenizer_texts, train_tiny_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.rendering.history import set_history_steps
from offline_arl.rendering.return_conditioning import add_return_tokens, require_return_tokens
from offline_arl.trajectories.lineage import remember_derived
from offline_arl.trajectories.schema import Trajectory
from offline_arl.trajectories.segment import Segment
from offline_arl.trajectories.store import Store, open_store
from offline_arl.workflows.context import StageContext, StageOutputs, count
from offline_arl.workflows.stages import CopyingDataset, Dataset, InitialPolicy, part_of
from offline_arl.workflows.stores import of_splits, split_names, told_damage


def initial_policy(config: InitialPolicy, context: StageContext) -> StageOutputs:
    """Save the policy that training starts from, with the chat template that rendering uses.

    Raises:
        DataError: The store holds no text to train the tiny tokenizer on.
        UsageError: The model cannot be loaded.
        TemplateError: Its chat template cannot be trained with.
    """
    if config.model == "tiny":
        store = open_store(context.path(config.store, "store"))
        texts = (text for trajectory in store.iter_trajectories() for text in tokenizer_texts(trajectory))
        with told_damage(store):
            tokenizer = train_tiny_tokenizer(texts, vocabulary_size=config.vocabulary_size)
        add_return_tokens(tokenizer, config.return_tokens)
        model = build_tiny_policy(
            tokenizer,
            seed=context.integer_seed(),
            tie_embeddings=config.tie_embeddings,
            architecture=config.architecture,
        )
    else:
        model, tokenizer = load_policy(config.model, config.dtype)
        added = add_return_tokens(tokenizer, config.return_tokens)
        if added:
            embed_new_tokens(model, added, seed=context.integer_seed())
    if config.history_steps is not None:
        set_history_steps(tokenizer, config.history_steps)
    renderer = Renderer(tokenizer)
    tokenizer.chat_template = renderer.chat_template
    save_policy(model, tokenizer, context.folder / "policy")
    if config.model == "tiny":  # its vocabulary is made of the store's texts
        remember_derived(context.path(config.store, "store"), "policy", context.final("policy"))
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    return StageOutputs(
        artifacts={"policy": "policy"},
        notes=(
            f"{config.model}: {millions:.2f} M parameters, {len(tokenizer)} tokens, "
            f"calls in {renderer.tool_format} form",
        ),
    )


class _CountingRenderer(Renderer):
    """Counts the steps that fit no segment, so that they are told once a dataset."""

    too_long = 0

    def render(self, trajectory: Trajectory, max_tokens: int | None = None) -> list[Segment]:
        segments = super().render(trajectory, max_tokens)
        wanted = sum(trajectory.messages[index].trainable is not False for index in trajectory.step_indices())
        self.too_long += wanted - sum(len(segment.step_spans()) for segment in segments)
        return segments


def build_dataset(config: Dataset, context: StageContext) -> StageOutputs:
    """Write a dataset of the chosen form.

    Raises:
        DataError: The store holds nothing that this form can use; the message gives the reasons.
        UsageError: The policy's tokenizer cannot be loaded, or the store has no such split.
    """
    tokenizer = load_tokenizer(context.path(config.policy, "policy"))
    renderer = _CountingRenderer(tokenizer)
    store = open_store(context.path(config.store, "store"))
    where = of_splits(store, config.splits)
    try:
        read = partial(read_trajectories, context, store, where)
        manifest = _build(config, read, renderer, context.folder / "dataset")
    except DataError as error:
        hints = [_too_long(renderer, config)] if renderer.too_long else []
        if "unscored" in str(error):
            hints.append("what nobody judged needs an outcome (offline-arl label), or is cloned as a whole (form bc)")
        if hints:
            raise DataError("; ".join([str(error), *hints])) from error
        raise
    lineage = remember_derived(store.path, "dataset", context.final("dataset"))
    write_manifest(context.folder / "dataset", msgspec.structs.replace(manifest, lineage=lineage))
    counts = manifest.counts
    left_out = [f"{number} left out ({reason})" for reason, number in manifest.excluded.items()]
    if renderer.too_long:
        left_out.append(_too_long(renderer, config))
    # Whoever splits a store and forgets it here evaluates on what was trained on, and would not notice.
    splits = [] if config.splits else split_names(store)
    whole = [f"all splits of the store are in it: {', '.join(splits)}"] if splits else []
    return StageOutputs(
        artifacts={"dataset": "dataset"},
        metrics={f"segments/{context.name}": count(counts["rows"]), f"steps/{context.name}": count(counts["steps"])},
        notes=(
            f"{counts['trajectories']} trajectories, {counts['steps']} steps, {counts['tokens']} tokens of which "
            f"{counts['action_tokens']} are trained" + "".join(f"; {line}" for line in left_out),
            *whole,
        ),
    )


def build_copying_dataset(config: CopyingDataset, context: StageContext) -> StageOutputs:
    """Write exercises in copying.

    Raises:
        DataError: The tokenizer has too few tokens for them.
        UsageError: The policy's tokenizer cannot be loaded.
    """
    tokenizer = load_tokenizer(context.path(config.policy, "policy"))
    vocabulary = tokenizer.get_vocab()
    words = sorted(set(vocabulary.values()) - set(tokenizer.added_tokens_decoder))
    manifest = build_copying(
        identifier_tokens(vocabulary),
        np.array(words, dtype=np.int64),
        context.folder / "dataset",
        fingerprint=Renderer(tokenizer).fingerprint,
        config=part_of(config, CopyingConfig),
        seed=context.integer_seed(),
    )
    counts = manifest.counts
    return StageOutputs(
        artifacts={"dataset": "dataset"},
        metrics={f"segments/{context.name}": count(counts["rows"])},
        notes=(
            f"{counts['rows']} exercises, {counts['tokens']} tokens of which {counts['action_tokens']} are trained",
        ),
    )


def _too_long(renderer: _CountingRenderer, config: Dataset) -> str:
    """How many steps fit no segment, and the setting that admits them."""
    return (
        f"{renderer.too_long} steps have more than {config.max_tokens} tokens even without their history: left out; "
        "raise max_tokens, or set it to null for no bound"
    )


def _build(
    config: Dataset, read: Callable[[], Iterator[Trajectory]], renderer: Renderer, folder: Path
) -> DatasetManifest:
    if config.form == "return_conditioned":
        return _build_return_conditioned(config, read, renderer, folder)
    trajectories = read()
    if config.form == "transitions":
        transitions = TransitionsConfig(rewards=config.rewards, max_tokens=config.max_tokens)
        return build_transitions(trajectories, renderer, folder, config=transitions)
    cloning = BCConfig(only_successes=config.form == "filtered_bc", max_tokens=config.max_tokens)
    if config.top_fraction is not None:
        border = return_of_top_fraction(read(), fraction=config.top_fraction, rewards=config.rewards)
        cloning = BCConfig(min_return=border, rewards=config.rewards, max_tokens=config.max_tokens)
    return build_bc(trajectories, renderer, folder, config=cloning)


def _build_return_conditioned(
    config: Dataset, read: Callable[[], Iterator[Trajectory]], renderer: Renderer, folder: Path
) -> DatasetManifest:
    """Two passes over the store: the returns first, which need no rendering, then the segments."""
    wanted = config.conditioning
    if wanted.scope == "trajectory" and renderer.history_steps is not None:
        raise UsageError(
            "the policy sees a window of its history (history_steps), which a return before the first step soon "
            "leaves; set conditioning.scope: step"
        )
    fitted = fit_conditioning(read(), rewards=config.rewards, config=wanted)
    if wanted.form == "quantile_tokens":
        require_return_tokens(renderer.tokenizer, fitted.writer.levels)
    settings = ReturnConditionedConfig(return_conditioning=fitted, max_tokens=config.max_tokens)
    return build_return_conditioned(read(), renderer, folder, config=settings)


def read_trajectories(context: StageContext, store: Store, where: pl.Expr | None) -> Iterator[Trajectory]:
    """The trajectories of a store, or some of them, with progress."""
    total = len(store) if where is None else store.trajectories.filter(where).select(pl.len()).collect().item()
    trajectories = store.iter_trajectories(where)
    for done in count_from(1):
        with told_damage(store):  # of the store's reading alone, not of what is done with a trajectory
            trajectory = next(trajectories, None)
        if trajectory is None:
            return
        yield trajectory
        if done % 100 == 0 or done == total:
            context.progress("trajectories", done, total)
