"""`kernelwright train push`: a data set or a policy to the Hugging Face Hub."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field
from rich.console import Console

from kernelwright.kernelbench.cli import Json
from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.kernelbench.options import Section, command

_KINDS = {"dataset": "DATASHEET.md", "model": "config.json"}  # by a file that only such a folder has
_ADAPTERS = "adapter_config.json"
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN to a token that may write there"


class PushedOptions(Section):
    """Folder, and where it goes."""

    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Data set of `train curate`, or folder of a policy.")
    ]
    repository: Annotated[
        str,
        Field(pattern=r"^[\w.-]+/[\w.-]+$"),
        typer.Argument(metavar="OWNER/NAME", help="Repository on the Hugging Face Hub."),
    ]
    public: Annotated[bool, typer.Option("--public", help="Create the repository for everybody to see.")] = (
        False
    )
    message: Annotated[str, typer.Option(metavar="TEXT", help="Message of the commit.")] = (
        "Written by kernelwright"
    )


class PushOutputOptions(Section):
    """Form of the answer."""

    as_json: Json = False


class PushConfig(Section):
    """Options of `kernelwright train push`."""

    what: PushedOptions
    output: PushOutputOptions = PushOutputOptions()


@command(PushConfig)
def push(config: PushConfig) -> None:
    """Push a data set or a policy to the Hugging Face Hub, with its card.

    The repository is created if there is none, for its owner alone to see unless --public is given.
    """
    folder, repository = config.what.folder, config.what.repository
    kind = kind_of(folder)
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise MissingPrerequisite(
            "pushing needs the package huggingface_hub", "pip install 'kernelwright[rl]'"
        ) from None
    import httpx

    api = HfApi(library_name="kernelwright")
    try:
        api.create_repo(repository, repo_type=kind, private=not config.what.public, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            repo_type=kind,
            commit_message=config.what.message,
            ignore_patterns=[".*", "*.tmp"],
        )
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        fix = _LOGIN if status in (401, 403) else "check the name, and try again"
        raise UsageError(f"{repository} cannot be written: {_in_a_line(error)}", fix) from None
    except (httpx.TransportError, OSError, ValueError) as error:  # ValueError: it is no Hub
        raise UsageError(
            f"the Hugging Face Hub does not answer: {_in_a_line(error)}",
            "check the connection, and try again",
        ) from None
    if config.output.as_json:
        print(json.dumps({"schema": 1, "kind": kind, "repository": repository, "commit": done.oid}))
        return
    Console(highlight=False).print(
        f"{folder} is commit {done.oid[:12]} of {repository} ({kind})", markup=False, soft_wrap=True
    )


def kind_of(folder: Path) -> Literal["dataset", "model"]:
    """Return what a folder holds. Raises UsageError if it is neither, or has no card."""
    if (folder / _KINDS["dataset"]).is_file():
        kind: Literal["dataset", "model"] = "dataset"
    elif (folder / _KINDS["model"]).is_file() or (folder / _ADAPTERS).is_file():
        kind = "model"
    else:
        raise UsageError(
            f"{folder} is neither a data set nor a policy", "give a folder of `train curate`, or DIR/policy"
        )
    if not (folder / "README.md").is_file():
        raise UsageError(f"{folder} has no card (README.md)", "write one: what it is, and its license")
    return kind


def _in_a_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
