"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def path(text: str) -> Path:
    """A path that was given. An empty text, as from an unset shell variable, would mean the working directory."""
    if not text:
        raise typer.BadParameter("is empty; name a path")
    return Path(text)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Seed = Annotated[int, typer.Option(help="Seed of all randomness.", min=0)]
Store = Annotated[Path, typer.Option(help="Folder of the trajectory store.", parser=path)]
StoreFolder = Annotated[Path, typer.Argument(metavar="STORE", help="Folder of the trajectory store.", parser=path)]
Out = Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.", parser=path)]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; values are YAML. Repeat for several."),
]
Processes = Annotated[
    int, typer.Option(help="Processes that train together; with GPUs each takes one.", min=1, show_default=True)
]
EnvironmentName = Annotated[str, typer.Option(help="Environment to act in.")]
Backend = Annotated[Literal["auto", "vllm", "transformers"], typer.Option(help="What samples the rollouts.")]


def example(command: str) -> str:
    """The epilog of a command's help."""
    return f"Example: {command}"
