"""What all kinds of stages share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

Dtype = Literal["float32", "bfloat16"]  # of the weights in memory
Artifact = Literal["logs", "store", "policy", "dataset", "values", "history"]


@dataclass(frozen=True)
class Ref:
    """Marks a field that names an earlier stage (or several) and says which of its artifacts is needed.

    `forms` are those of the datasets that it takes; empty: any.
    """

    artifact: Artifact
    forms: tuple[str, ...] = ()


@dataclass(frozen=True)
class InputFile:
    """Marks a field that holds a path or several."""


class Stage(BaseModel):
    """What all kinds share.

    `seeded` is False where the result does not depend on the pipeline's seed. `shared` is True where several processes
    can do the stage together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    produces: ClassVar[tuple[Artifact, ...]] = ()
    seeded: ClassVar[bool] = True
    shared: ClassVar[bool] = False

    def forms(self, field: str) -> tuple[str, ...]:
        """The forms of the datasets that a field takes; empty: any, or it names none."""
        for name, _, mark in self._marked(Ref):
            if name == field:
                forms: tuple[str, ...] = mark.forms
                return forms
        return ()

    def references(self) -> Iterator[tuple[str, str, Artifact]]:
        """Each (field, stage name, artifact) that the configuration refers to."""
        for field, value, mark in self._marked(Ref):
            for name in (value,) if isinstance(value, str) else value:
                yield field, name, mark.artifact

    def input_files(self) -> Iterator[tuple[str, str]]:
        """Each (field, path) of the files that the stage reads."""
        for field, value, _ in self._marked(InputFile):
            for path in (value,) if isinstance(value, str) else value:
                yield field, path

    def _marked(self, mark_type: type[Any]) -> Iterator[tuple[str, Any, Any]]:
        for field, info in type(self).model_fields.items():
            value = getattr(self, field)
            for mark in info.metadata:
                if isinstance(mark, mark_type) and value is not None:
                    yield field, value, mark


ConfigT = TypeVar("ConfigT", bound=BaseModel)


def part_of(stage: Stage, kind: type[ConfigT]) -> ConfigT:
    """The trainer's own configuration out of a stage that extends it."""
    return kind.model_validate({name: getattr(stage, name) for name in kind.model_fields})
