"""What ships for running a server: the dashboard names metrics that exist; unit and image are
sound.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import serve
from serve.settings import ServeSettings
from tests.api.fakes import ask, running

ROOT = Path(__file__).parents[2]
DEPLOY = Path(serve.__path__[0]) / "deploy"


async def served_metrics() -> dict[str, set[str]]:
    """Labels of every metric, by the name that a query gives it."""
    async with running() as client:
        await ask(client, "Who?")
        await client.post("/v1/ask", content=b" " * 300_000)  # refused
        text = (await client.get("/metrics")).text
    result: dict[str, set[str]] = {}
    for line in text.splitlines():
        if sample := re.match(r"(rag_\w+)(?:\{(.*)\})? ", line):
            result.setdefault(sample[1], set()).update(re.findall(r'(\w+)="', sample[2] or ""))
    return result


@pytest.mark.anyio
async def test_the_dashboard_asks_for_metrics_and_labels_that_exist() -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    known = await served_metrics()
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for query in queries for name in re.findall(r"rag_\w+", query)}
    assert used <= set(known), used - set(known)
    for query in queries:
        grouped = ",".join(re.findall(r"by \(([^)]*)\)", query))
        labels = set(re.findall(r"\w+", grouped)) | set(re.findall(r"(\w+)(?:=~|=)\"", query))
        known_here = set().union(*(known[name] for name in re.findall(r"rag_\w+", query)))
        assert labels - {"instance"} <= known_here, query


def test_the_unit_is_valid_and_waits_for_accepted_requests(tmp_path: Path) -> None:
    unit = (DEPLOY / "rag-serve.service").read_text()
    stop_s = int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M)[1])  # type: ignore[index]
    assert stop_s > ServeSettings(_env_file=None).drain_timeout_s
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    place = tmp_path / "rag-serve.service"
    place.write_text(unit.replace("/opt/rag/bin/rag", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(place)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "rag-serve" not in done.stderr


def test_the_image_is_made_of_what_there_is() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert steps[0][0] == "FROM"
    for word, rest in steps:
        if word == "COPY":
            assert all((ROOT / source).exists() for source in rest.split()[:-1]), rest
        if word == "ENV":
            names = re.findall(r"RAG_SERVE_(\w+)=", rest)
            assert {name.lower() for name in names} <= ServeSettings.model_fields.keys()
        if word == "HEALTHCHECK":
            compile(json.loads(rest.partition("CMD ")[2])[2], "health check", "exec")
    [extras] = [rest.partition("=")[2] for word, rest in steps if rest.startswith("EXTRAS=")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"docs", "llm"} <= {*extras.split(",")} <= project["optional-dependencies"].keys()
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert set(re.findall(r"torch==\S+", "\n".join(lines))) & set(pins)


def test_the_compose_file_runs_this_image_and_lets_it_write_its_index() -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["rag"]
    context = (DEPLOY / service["build"]["context"]).resolve()
    assert (context, (context / service["build"]["dockerfile"]).is_file()) == (ROOT, True)
    # No third part: not read-only.
    [(_, target)] = [volume.split(":") for volume in service["volumes"]]
    assert f"RAG_SERVE_INDEX={target} " in (DEPLOY / "Dockerfile").read_text()
    assert int(service["stop_grace_period"].removesuffix("s")) > ServeSettings().drain_timeout_s
