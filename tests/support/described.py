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
    """Fail unless a body in JSON is what OpenAPI describes for its route and status."""
    path = response.request.url.path
    is_json = response.headers.get("content-type") == "application/json"
    if not is_json or response.request.method == "HEAD" or path in _UNDESCRIBED:
        return
    described = description()
    responses: dict[str, Any] = {}
    for template, operations in described["paths"].items():
        if re.fullmatch(re.sub(r"{\w+}", ".+", template), path):
            responses = operations.get(response.request.method.lower(), {}).get("responses", {})
            break
    error = described["paths"]["/healthz"]["get"]["responses"]["default"]
    content = responses.get(str(response.status_code), error)["content"]
    schema = content["application/json"]["schema"]
    await response.aread()
    assert schema, f"{path}: nothing describes what it answers with {response.status_code}"
    jsonschema.validate(response.json(), {**schema, "components": described["components"]})
