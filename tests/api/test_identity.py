"""Who asks: keys of a file and tokens of an identity provider, forged and expired ones among them."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from starlette.datastructures import Headers

from serve import identity
from serve.errors import ApiError
from serve.identity import People, Person
from serve.settings import hash_api_key, load_settings
from tests.support.messages import refusal

RSA = rsa.generate_private_key(65537, 2048)
OTHER = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
PEM = RSA.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
SECRET = base64.urlsafe_b64encode(PEM).decode().rstrip("=")
PROVIDER = {"token_issuer": "https://id", "token_audience": "rag"}
KEYS = {
    "keys": [
        {**RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), "kid": "rsa"},
        {**ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "ec"},
        {"kty": "oct", "k": SECRET, "kid": "shared", "alg": "HS256"},
        {**RSAAlgorithm.to_jwk(OTHER.public_key(), as_dict=True), "kid": "enc", "use": "enc"},
    ]
}


def claims(**changed: Any) -> dict[str, Any]:
    usual = {"iss": "https://id", "aud": "rag", "sub": "ann", "exp": time.time() + 60}
    given = {**usual, "groups": ["staff"], **changed}
    return {name: value for name, value in given.items() if value is not None}


def signed(kid: str | None = "rsa", alg: str = "RS256", key: Any = RSA, **changed: Any) -> str:
    return jwt.encode(claims(**changed), key, algorithm=alg, headers={"kid": kid} if kid else {})


def forged(alg: str, kid: str = "rsa", signature: bytes = b"") -> str:
    """A token that PyJWT itself would not write."""
    parts = [json.dumps({"alg": alg, "kid": kid}).encode(), json.dumps(claims()).encode()]
    body = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
    if signature:
        signature = hmac.new(signature, body.encode(), hashlib.sha256).digest()
    return f"{body}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def with_subject(subject: object) -> str:
    """A signed token that PyJWT itself would not write."""
    content = json.dumps({**claims(), "sub": subject}).encode()
    return jwt.PyJWS().encode(content, RSA, "RS256", {"kid": "rsa"})


def person_of(people: People, key: str, header: str = "authorization") -> Person:
    value = f"Bearer {key}" if header == "authorization" else key
    return asyncio.run(people.person(Headers({header: value})))


def status_of(people: People, key: str) -> int:
    with refusal(ApiError) as refused:
        person_of(people, key)
    return refused.value.status


@pytest.fixture
def people(tmp_path: Path) -> People:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(KEYS))
    return People(load_settings(token_keys=str(path), **PROVIDER))


ACCEPTED: list[tuple[Callable[[], str], set[str]]] = [
    (signed, {"staff"}),
    (lambda: signed("ec", "ES256", EC), {"staff"}),
    (lambda: signed(groups="a,b"), {"a", "b"}),
    (lambda: signed(groups=None), set()),
    (lambda: signed(groups=[]), set()),
    (lambda: signed(aud=["other", "rag"]), {"staff"}),
    (lambda: signed(groups=[str(n) for n in range(10_000)]), {str(n) for n in range(10_000)}),
]


@pytest.mark.parametrize(("make", "groups"), ACCEPTED)
def test_a_token_names_a_person_and_the_groups(
    people: People, make: Callable[[], str], groups: set[str]
) -> None:
    assert person_of(people, make()) == Person("ann", frozenset(groups))


REFUSED: dict[str, Callable[[], str]] = {
    "none": lambda: forged("none"),
    "None": lambda: forged("None"),
    "public key as secret": lambda: forged("HS256", signature=PEM),
    "shared key of the set": lambda: forged("HS256", "shared", PEM),
    "another algorithm of the key": lambda: signed(alg="PS256"),
    "another key": lambda: signed(key=OTHER),
    "a key for encryption": lambda: signed("enc", key=OTHER),
    "no key named": lambda: signed(None),
    "unknown key": lambda: signed("new"),
    "expired a second ago": lambda: signed(exp=time.time() - 1),
    "not yet valid": lambda: signed(nbf=time.time() + 60),
    "another audience": lambda: signed(aud="others"),
    "another issuer": lambda: signed(iss="https://evil"),
    "no expiry": lambda: signed(exp=None),
    "no issuer": lambda: signed(iss=None),
    "no audience": lambda: signed(aud=None),
    "no subject": lambda: signed(sub=None),
    "an empty subject": lambda: signed(sub=""),
    "a subject of white space": lambda: signed(sub=" \n"),
    "a number as the subject": lambda: with_subject(7),
    "a group called *": lambda: signed(groups=["*"]),
    "groups as an object": lambda: signed(groups={"staff": True}),
    "cut off": lambda: signed()[:-9],
    "no base64": lambda: "a.b.c",
    "empty parts": lambda: "..",
    "changed claims": lambda: ".".join(
        [signed().split(".")[0], signed(sub="eve").split(".")[1], signed().split(".")[2]]
    ),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_other_tokens_are_nobodys(people: People, make: Callable[[], str]) -> None:
    assert status_of(people, make()) == 401


def test_a_file_of_keys_names_groups_and_holds_as_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(
        f"# our keys\n{hash_api_key('a')}  staff\n{hash_api_key('a')} OU=board, x\n"
        f"{hash_api_key('b').upper()}\t-\r\n\n"
    )
    people = People(load_settings(key_file=path, api_keys=(hash_api_key("c"),)))
    assert person_of(people, "a").groups == {"staff", "OU=board, x"}
    assert person_of(people, "b", "x-api-key").groups == set()
    assert person_of(people, "c") == Person("1")
    path.write_text(f"{hash_api_key('b')} staff\n")
    assert status_of(people, "a") == 401
    assert person_of(people, "b").groups == {"staff"}
    for damaged in ("b staff\n", f"{hash_api_key('b')} *\n"):
        path.write_text(damaged)
        assert status_of(people, "b") == 503
    path.unlink()
    assert status_of(people, "b") == 503


def test_without_keys_everybody_asks_and_may_be_taken_for_others() -> None:
    assert person_of(People(load_settings()), "").groups == set()
    assert person_of(People(load_settings(as_groups="a,b")), "").groups == {"a", "b"}
    keyed = People(load_settings(api_keys=(hash_api_key("c"),), as_groups=""))
    assert status_of(keyed, "x") == 401
    assert person_of(keyed, "c").groups == set()


class Provider:
    """An identity provider whose keys are `reply`; it waits while `hangs` is set."""

    def __init__(self) -> None:
        self.reply = json.dumps(KEYS)
        self.calls = 0
        self.asked = Event()
        self.answers = Event()
        self.answers.set()


@contextmanager
def provider() -> Iterator[tuple[Provider, str]]:
    state = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.calls += 1
            state.asked.set()
            state.answers.wait(20)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(state.reply.encode())

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state, f"http://127.0.0.1:{server.server_address[1]}/keys"
    finally:
        state.answers.set()
        server.shutdown()
        server.server_close()


@pytest.mark.anyio
async def test_an_address_of_keys_that_hangs_holds_up_only_whose_key_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(identity, "_TIMEOUT_S", 0.3)
    with provider() as (state, url):
        settings = load_settings(token_keys=url, api_keys=(hash_api_key("k"),), **PROVIDER)
        people = People(settings)

        async def status(key: str) -> int:
            try:
                await people.person(Headers({"authorization": f"Bearer {key}"}))
            except ApiError as error:
                return error.status
            return 200

        state.answers.clear()
        waiting = [asyncio.create_task(status(signed())) for _ in range(20)]
        await asyncio.sleep(0)
        assert await status("k") == 200
        assert not any(task.done() for task in waiting)
        assert await asyncio.gather(*waiting) == [503] * 20
        # The provider's thread may see the request later than the server gives it up.
        assert await asyncio.to_thread(state.asked.wait, 20)
        assert state.calls == 1
        state.answers.set()
        monkeypatch.setattr(identity, "_RETRY_S", 0.0)
        while await status(signed()) != 200:
            await asyncio.sleep(0.05)
        calls = state.calls
        # Unknown keys do not make the server ask as often as somebody sends one.
        monkeypatch.setattr(identity, "_RETRY_S", 60.0)
        unknown = [asyncio.create_task(status(signed(f"k{n}"))) for n in range(20)]
        assert await asyncio.gather(*unknown) == [401] * 20
        assert state.calls == calls
        # Keys that are known go on while the address gives nothing.
        monkeypatch.setattr(identity, "_RETRY_S", 0.0)
        monkeypatch.setattr(identity, "_REFRESH_S", 0.0)
        for state.reply in ("", "[]", '{"keys": []}', "x" * 100):
            assert await status(signed()) == 200
            await asyncio.sleep(0.05)
        monkeypatch.setattr(identity, "_KEPT_S", 0.0)
        assert await status(signed()) == 503


pytestmark = pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
