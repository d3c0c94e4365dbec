"""Who asks: people with API keys, or with tokens that an identity provider has signed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import jwt
from starlette.datastructures import Headers

from rag.core.errors import ConfigError
from rag.core.log import get_logger
from rag.core.types import Groups
from rag.data.metadata import groups_of_person
from serve.errors import ApiError, refused
from serve.settings import SHA256, ServeSettings

log = get_logger(__name__)
Parsed = TypeVar("Parsed")
Keys = Mapping[str, jwt.PyJWK]
# A provider's keys alone verify, every key by its algorithm: neither `none`, nor a public key taken
# for a shared secret (HS256).
ALGORITHMS = ("RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA")
_CLAIMS = ("exp", "iss", "aud", "sub")
_TIMEOUT_S = 5.0
_REFRESH_S = 300.0  # age of keys from which they are fetched again
_RETRY_S = 10.0  # between two attempts
_KEPT_S = 3600.0  # longest use of keys whose address does not answer any more


@dataclass(frozen=True, slots=True)
class Person:
    """Who sends a request.

    Attributes:
        name: for logs: "1" for the first key of the settings, "key 2bb80d53" for one of the file by
            its hash, or the subject of a token.
        groups: the groups that the person belongs to.
    """

    name: str
    groups: Groups = frozenset()


class People:
    """Tells who sends a request, by the settings of the server."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        names = enumerate(settings.api_keys, 1)
        self._keys = {hashed: Person(str(number)) for number, hashed in names}
        self._file = None
        if settings.key_file is not None:
            self._file = _FollowedFile(settings.key_file, people_of_keys)
        self._tokens = _Tokens(settings) if settings.token_keys else None

    async def person(self, headers: Headers) -> Person:
        """The person of `Authorization: Bearer KEY` (or TOKEN), or of `X-API-Key: KEY`.

        Raises:
            ApiError: 401: there is no key or token, or it is not accepted; 503: that cannot be told
                now.
        """
        if not self._settings.knows_people:
            return self._acting(Person("anyone"))
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        key = bearer.strip(" \t") if scheme.lower() == "bearer" else ""
        key = key or headers.get("x-api-key", "")
        if not key:
            raise _unknown("an API key is needed")
        # Headers have one character per byte.
        hashed = hashlib.sha256(key.encode("latin-1")).hexdigest()
        person = self._keys.get(hashed)
        if person is None and self._file is not None:
            person = self._file.read().get(hashed)
        if person is None and self._tokens is not None and key.count(".") == 2:
            person = await self._tokens.person(key)
        if person is None:
            raise _unknown("this API key is not accepted")
        return self._acting(person)

    def _acting(self, person: Person) -> Person:
        if self._settings.as_groups is None:
            return person
        return replace(person, groups=groups_of_person(self._settings.as_groups))


def _unknown(message: str) -> ApiError:
    hint = "send Authorization: Bearer KEY, or X-API-Key: KEY"
    return ApiError(401, "unauthorized", message, hint, {"WWW-Authenticate": "Bearer"})


def _closed(reason: str) -> ApiError:
    log.error("nobody can be identified: %s", reason)
    return refused("identity_unavailable", "the server cannot tell now who asks", 10)


class _FollowedFile(Generic[Parsed]):
    """What a file says, read anew when it changes."""

    def __init__(self, path: Path, parse: Callable[[str], Parsed]) -> None:
        self._path = path
        self._parse = parse
        self._read: tuple[tuple[int, int, int], Parsed] | None = None

    def read(self) -> Parsed:
        """What the file says now; an ApiError with 503 if it cannot be read."""
        try:
            status = os.stat(self._path)
            state = (status.st_ino, status.st_mtime_ns, status.st_size)
            if self._read is None or self._read[0] != state:
                self._read = (state, self._parse(self._path.read_text("utf-8-sig")))
            return self._read[1]
        except (OSError, ValueError, ConfigError, jwt.PyJWTError) as error:
            raise _closed(f"{self._path}: {error}") from error


def people_of_keys(text: str) -> dict[str, Person]:
    """The people of a file of keys, by the hashes of their keys.

    Each line has the SHA-256 of a key and one group, or none; `#` begins a remark. A key in several
    groups has several lines.

    Raises:
        ValueError: a line is of another form.
        ConfigError: a name cannot be a group's.

    Example:
        >>> (person,) = people_of_keys(f"{'8254c329' * 8}  staff").values()
        >>> person.name, sorted(person.groups)
        ('key 8254c329', ['staff'])
    """
    people: dict[str, Person] = {}
    for number, line in enumerate(text.splitlines(), 1):
        hashed, _, group = line.strip().replace("\t", " ", 1).partition(" ")
        if not hashed or hashed.startswith("#"):
            continue
        # PowerShell writes capitals.
        hashed = hashed.lower()
        if not SHA256.fullmatch(hashed):
            raise ValueError(f"line {number} does not begin with the SHA-256 of a key")
        # `sha256sum` ends its line with a dash.
        groups = groups_of_person([group.strip()] if group.strip() not in ("", "-") else None)
        person = people.get(hashed, Person(f"key {hashed[:8]}"))
        people[hashed] = replace(person, groups=person.groups | groups)
    return people


class _Tokens:
    """Verifies tokens (JWT) of one identity provider."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        source = str(settings.token_keys)
        is_url = source.startswith(("https://", "http://"))
        self._endpoint = _Endpoint(source) if is_url else None
        self._file = _FollowedFile(Path(source), _keys_of_text)

    async def person(self, token: str) -> Person:
        """The person whom a token names.

        Raises:
            ApiError: 401: it is not accepted; 503: the provider's keys cannot be had.
        """
        try:
            name = jwt.get_unverified_header(token).get("kid", "")
            if self._endpoint is None:
                key = self._file.read().get(name)
            else:
                key = await self._endpoint.key(name)
            if key is None or key.algorithm_name not in ALGORITHMS:
                raise jwt.InvalidKeyError("no key of the provider has signed it")
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._settings.token_audience,
                issuer=self._settings.token_issuer,
                options={"require": list(_CLAIMS)},
            )
            if not claims["sub"].strip():
                raise jwt.InvalidTokenError("Subject must not be empty")
            return Person(claims["sub"], groups_of_person(claims.get(self._settings.token_groups)))
        except (jwt.PyJWTError, ConfigError) as error:
            raise _unknown(f"this token is not accepted: {error}") from error


def _keys_of_text(text: str) -> Keys:
    return _by_name(jwt.PyJWKSet.from_json(text).keys)


def _by_name(keys: list[jwt.PyJWK]) -> Keys:
    return {key.key_id: key for key in keys if key.key_id and key.public_key_use in (None, "sig")}


class _Endpoint:
    """The keys at an address, fetched on a separate thread and one fetch at a time: an address that
    hangs holds up only people whose keys are not known yet.
    """

    def __init__(self, url: str) -> None:
        self._client = jwt.PyJWKClient(url, cache_jwk_set=False, timeout=_TIMEOUT_S)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rag-keys")
        self._keys: Keys = {}
        self._fetched_s = -_KEPT_S
        self._tried_s = -_RETRY_S
        self._fetch: asyncio.Future[None] | None = None

    async def key(self, name: str) -> jwt.PyJWK | None:
        """The key of this name; None if the provider has none.

        Raises:
            ApiError: 503: it is not known, and the address gives no answer.
        """
        known = self._known(name)
        age_s = time.monotonic() - self._fetched_s
        is_due = known is None or age_s > _REFRESH_S
        is_idle = self._fetch is None or self._fetch.done()
        if is_due and is_idle and time.monotonic() - self._tried_s >= _RETRY_S:
            self._tried_s = time.monotonic()
            self._fetch = asyncio.ensure_future(self._refresh())
        if known is None and self._fetch is not None:
            await asyncio.wait({self._fetch}, timeout=_TIMEOUT_S)
            known = self._known(name)
        if known is None and self._fetched_s < self._tried_s:
            raise _closed(f"{self._client.uri} gives no keys")
        return known

    def _known(self, name: str) -> jwt.PyJWK | None:
        is_usable = time.monotonic() - self._fetched_s < _KEPT_S
        return self._keys.get(name) if is_usable else None

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            keys = await loop.run_in_executor(self._thread, self._client.get_signing_keys)
        # What a stranger's server sends may be anything.
        except Exception as error:
            log.warning("the keys of tokens could not be fetched: %s", error)
            return
        self._keys = _by_name(keys)
        self._fetched_s = time.monotonic()
