"""Entry point: the commands, and what happens to errors.

Exit codes: 0 done, 1 bad data or a refusal, 2 wrong use, 130 interrupted, 143 terminated. An error is one line on
stderr; under `--json` stdout carries an object with "error" too, so that a program always has one to read.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

import offline_arl
from offline_arl.cli import (
    care,
    data,
    deletion,
    diagnosis,
    environments,
    exchange,
    learning,
    pipeline,
    preferences,
    report,
)
from offline_arl.cli.output import print_error
from offline_arl.cli.signals import Termination
from offline_arl.errors import OfflineArlError

# Read by torch and vLLM when they are imported; a value that the user has set stays.
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",  # threads that spin while they wait slow small models down about twelve times
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # vLLM's binding to memory nodes warns at every engine start
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # transformers' bars; stderr has ours
    "VLLM_NO_USAGE_STATS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}

INTERRUPTED = 130
TERMINATED = 143

logger = logging.getLogger(__name__)
termination = Termination()

app = typer.Typer(
    name="offline-arl",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Turn the interaction logs of LLM agents into better agents.",
    epilog="Start with: offline-arl run pipelines/quickstart.yaml --output runs/quickstart",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"offline_arl {offline_arl.__version__}")
        raise typer.Exit


def set_environment() -> None:
    """Set what libraries read when they are imported, where the user has not."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the log on stderr.")] = False,
) -> None:
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    set_environment()
    if not verbose:
        logging.getLogger("vllm").setLevel(logging.ERROR)
    # The versions that are installed together are pinned and tested; TRL only knows older ones.
    warnings.filterwarnings("ignore", message="TRL currently supports vLLM")


for _module in (data, report, care, deletion, exchange, learning, preferences, pipeline, environments, diagnosis):
    _module.register(app)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    as_json = "--json" in arguments
    try:
        code = app(args=list(arguments), prog_name="offline-arl", standalone_mode=False)
    except OfflineArlError as error:
        print_error(str(error), as_json=as_json)
        return error.exit_code
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            return 0  # the help is on the screen already
        print_error(f"{error.format_message()} (see --help)", as_json=as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone; let Python's own flush at exit find nothing to complain about.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # The disk is full, a file may not be read, a path is too long: nobody's fault in here. The log has the place.
        logger.info("the system refused", exc_info=error)
        print_error(
            f"{error.filename or 'the system'}: {error.strerror or error}; "
            "check the path, its permissions and the free space",
            as_json=as_json,
        )
        return 1
    except Exception as error:
        traceback.print_exc()
        print_error(f"unexpected {type(error).__name__}: {error}", as_json=as_json)
        return 1
    if code == INTERRUPTED:  # typer's translation of Ctrl-C
        print_error("terminated" if termination.asked else "interrupted", as_json=as_json)
        return TERMINATED if termination.asked else INTERRUPTED
    return code if isinstance(code, int) else 0


def _open_standard_streams() -> None:
    """Put the null device where a standard stream is closed.

    The next file that is opened would take its number, and what is written to the stream would go into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def main() -> NoReturn:
    """The `offline-arl` script."""
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a character that the terminal lacks ends no command
    termination.listen()
    sys.exit(run(sys.argv[1:]))
