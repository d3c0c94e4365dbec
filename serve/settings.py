"""Settings of the server, from code or from the environment."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    DirectoryPath,
    Field,
    FilePath,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from rag.core.errors import ConfigError, did_you_mean
from rag.core.manifest import MANIFEST_NAME
from rag.data.metadata import groups_of, groups_of_person
from rag.opening import OpenSettings

_PREFIX = "RAG_SERVE_"
SHA256 = re.compile(r"[0-9a-f]{64}")


def hash_api_key(key: str) -> str:
    """The stored form of an API key: hex sha256 of its UTF-8 bytes.

    Example:
        >>> hash_api_key("secret")[:16]
        '2bb80d537b1da3e3'
    """
    return hashlib.sha256(key.encode()).hexdigest()


def _check_hash(key: str) -> str:
    # `sha256sum` ends its line with a dash.
    key_hash = key.strip().lower().removesuffix("  -")
    if not SHA256.fullmatch(key_hash):
        raise ValueError(
            "not a sha256 (64 hex digits); keys are stored as hashes only, hash them with: "
            "printf %s KEY | sha256sum"
        )
    return key_hash


_KeyHash = Annotated[str, AfterValidator(_check_hash)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ServeSettings(BaseSettings, OpenSettings):
    """Settings of one server process; each can come from `RAG_SERVE_<NAME>` in the environment.

    Lists in the environment are separated by commas (`example_questions` by `|`).

    Example:
        >>> ServeSettings(port=9000, _env_file=None).port
        9000
    """

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True, extra="forbid")

    index: Path = Field(Path("index"), description="index to serve, may be a symbolic link")
    shelf: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="several indexes to serve, each as NAME=DIR"
    )
    shelves: DirectoryPath | None = Field(
        None, description="folder whose folders are the indexes to serve, by their names; followed"
    )
    open_indexes: int = Field(
        16, ge=1, description="most indexes of shelves that a process keeps open"
    )
    files: DirectoryPath | None = Field(
        None,
        description="folder that was indexed, whose files the server then shows to those who may ask it",
    )
    ray: str | None = Field(
        None, description="Ray cluster that searches the vectors, HOST:PORT or auto"
    )

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 for any free one")
    workers: int = Field(
        1,
        ge=1,
        le=256,
        description="processes that serve; each has models of its own and shares the index",
    )

    max_upload_bytes: int = Field(
        32 << 20, ge=1024, description="largest request body with documents, in bytes"
    )
    conversions: int = Field(
        2, ge=1, le=4, description="uploads whose files are converted at a time, over all workers"
    )
    timeout_s: _Seconds = Field(
        30.0, description="a request that takes longer is answered with 504"
    )
    drain_timeout_s: _Seconds = Field(
        30.0, description="longest wait for accepted requests at shutdown"
    )

    queue_size: int = Field(
        256, ge=1, description="questions that may wait; more are refused with 503"
    )
    batch_max_size: int = Field(16, ge=1, description="most questions in one batch")

    api_keys: Annotated[tuple[_KeyHash, ...], NoDecode] = Field(
        (),
        description="sha256 of each accepted API key (printf %s KEY | sha256sum); none: open to all",
    )
    key_file: FilePath | None = Field(
        None,
        description="file of accepted API keys with their groups: on each line the sha256 of a key and "
        "a group; read anew when it changes",
    )
    token_keys: str | None = Field(
        None, description="keys of an identity provider whose tokens are accepted: JWKS file or URL"
    )
    token_issuer: str | None = Field(None, description="issuer (iss) of accepted tokens")
    token_audience: str | None = Field(None, description="audience (aud) of accepted tokens")
    token_groups: str = Field("groups", description="claim that names a person's groups")
    editors: str | None = Field(
        None,
        description="group whose people may change documents; none: everybody with a key, where nobody "
        "has groups",
    )
    as_groups: str | None = Field(
        None, description="groups that everybody is taken to belong to, to try rights by hand"
    )
    feedback_file: Path | None = Field(
        None, description="JSON lines file that /v1/feedback appends to; it is off without one"
    )
    example_questions: Annotated[tuple[str, ...], NoDecode] = Field(
        (), max_length=8, description="questions the web page offers to try"
    )

    @field_validator("api_keys", "example_questions", "shelf", mode="before")
    @classmethod
    def _split(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str):
            return value
        parts = value.split("|" if info.field_name == "example_questions" else ",")
        stripped = tuple(part.strip() for part in parts if part.strip())
        if info.field_name == "api_keys" and not stripped:
            raise ValueError(f"{value!r} contains no key; unset it to serve without keys")
        return stripped

    @field_validator("shelf")
    @classmethod
    def _are_named(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        folders = dict[str, str]()
        for shelf in value:
            name, _, folder = shelf.partition("=")
            if not name or not folder or "/" in name:
                raise ValueError(f"{shelf!r}, expected NAME=DIR")
            if name in folders:
                raise ValueError(f"two shelves are called {name!r}: {folders[name]} and {folder}")
            folders[name] = folder
        return value

    @field_validator("editors")
    @classmethod
    def _is_one_group(cls, value: str | None) -> str | None:
        if value is None:
            return None
        # A name may have commas: CN=hr,OU=groups.
        [group] = groups_of([value])
        return group

    @property
    def has_shelves(self) -> bool:
        """Whether indexes are served by their names."""
        return bool(self.shelf) or self.shelves is not None

    def named_folders(self) -> dict[str, Path]:
        """The folders of indexes by the names of their shelves; the only index has the name "".

        Raises:
            OSError: the folder of shelves cannot be read.
        """
        if self.shelves is None:
            named = [shelf.partition("=") for shelf in self.shelf]
            folders = {name: Path(folder) for name, _, folder in named}
            return folders or {"": self.index}
        folders = {}
        for folder in sorted(self.shelves.iterdir()):
            if folder.name[0] != "." and os.path.isfile(folder / MANIFEST_NAME):
                folders[folder.name] = folder
        return folders

    @model_validator(mode="after")
    def _fit_together(self) -> ServeSettings:
        given = self.model_fields_set & {"index", "shelf", "shelves"}
        if len(given) > 1:
            raise ValueError(f"{' and '.join(sorted(given))} are given, expected one of them")
        for name in ("files", "ray"):
            if self.has_shelves and name in self.model_fields_set:
                raise ValueError(f"{name} is for a server of one index, not of shelves")
        if self.feedback_file is not None and not self.feedback_file.parent.is_dir():
            raise ValueError(f"feedback_file={self.feedback_file}: there is no folder for it")
        groups_of_person(self.as_groups)
        of_tokens = (self.token_keys, self.token_issuer, self.token_audience)
        if any(of_tokens) and not all(of_tokens):
            raise ValueError("token_keys, token_issuer and token_audience are needed together")
        return self

    @property
    def knows_people(self) -> bool:
        """Whether requests need a key or a token."""
        return bool(self.api_keys or self.key_file or self.token_keys)

    @property
    def knows_groups(self) -> bool:
        """Whether people may belong to groups."""
        return bool(self.key_file or self.token_keys or self.as_groups is not None)


def load_settings(**values: object) -> ServeSettings:
    """Settings from the environment, with `values` taking precedence.

    Raises:
        ConfigError: a setting is unknown or out of range; the message names each one.

    Example:
        >>> load_settings(port=70000)
        Traceback (most recent call last):
        ...
        rag.core.errors.ConfigError: server settings: port = '70000': Input should be less than or equal to 65535
          → settings come from flags and from RAG_SERVE_* in the environment
    """
    variables = {_PREFIX + name.upper() for name in ServeSettings.model_fields}
    present = {name for name in map(str.upper, os.environ) if name.startswith(_PREFIX)}
    for name in sorted(present - variables):
        hint = did_you_mean(name, variables, "serve.settings.ServeSettings lists them")
        raise ConfigError(f"server settings: there is no {name}", hint=hint)
    try:
        return ServeSettings(**values)  # type: ignore[arg-type]
    except ValidationError as error:
        problems = "; ".join(map(_explain, error.errors(include_url=False)))
        raise ConfigError(
            f"server settings: {problems}",
            hint="settings come from flags and from RAG_SERVE_* in the environment",
        ) from None


def _explain(problem: ErrorDetails) -> str:
    """The setting with its value, and what is wrong."""
    name = ".".join(map(str, problem["loc"])) or "together"
    if problem["type"] != "value_error":
        # The errors of this module state values themselves, but for keys.
        name += f" = {str(problem['input'])!r:.80}"
    return f"{name}: {problem['msg'].removeprefix('Value error, ')}"
