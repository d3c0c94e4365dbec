"""Compare the bodies of the server with their description in OpenAPI."""

import re
from functools import cache
from typing import Any

import httpx
import jsonschema

from serve.app import create_app
from serve.settings import ServeSettings

_UNDESCRIBED = ("/page.json", "/openapi.json")


@cache
def description() -> dict[str, Any]:
    """The description of all routes, in which an object has no fields but those it names."""
    described: dict[str, Any] = create_app(ServeSettings()).openapi()
    for model in described["components"]["schemas"].values():
        if "properties" in model:
            model.setdefault("additionalProperties", False)
    return described


async def check_described(response: httpx.Response) -> None:
    """Fail unless OpenAPI describes the status of a route, its kind of content, and all of a body in
    JSON.
    """
    path = response.request.url.path
    if response.request.method == "HEAD" or path in _UNDESCRIBED:
        return
    described = description()
    responses: dict[str, Any] = {}
    for template, operations in described["paths"].items():
        if re.fullmatch(re.sub(r"{\w+}", ".+", template), path):
            responses = operations.get(response.request.method.lower(), {}).get("responses", {})
            break
    kind = response.headers.get("content-type", "").partition(";")[0]
    if kind != "application/json":
        if responses:
            content = responses[str(response.status_code)].get("content", {"": {}})
            assert {kind, "*/*", ""} & content.keys(), f"{path}: nothing describes {kind}"
        return
    error = described["paths"]["/healthz"]["get"]["responses"]["default"]
    content = responses.get(str(response.status_code), error)["content"]
    schema = content["application/json"]["schema"]
    await response.aread()
    assert schema, f"{path}: nothing describes what it answers with {response.status_code}"
    jsonschema.validate(response.json(), {**schema, "components": described["components"]})
