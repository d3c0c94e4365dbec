"""Records what the whole system does over the sample corpus, and compares two records.

A change that should keep behaviour is compared with a checkout from before it:

    PYTHONPATH=BEFORE python -m tests.support.house record before --inputs inputs
    PYTHONPATH=AFTER  python -m tests.support.house record after --inputs inputs
    python -m tests.support.house compare before after

Each command runs from the checkout that PYTHONPATH names. `inputs` holds the models and the files that
both read, and is made by the first run. A record that exists is kept: delete its file to make it anew.
"""

import argparse
import json
import math
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from rag.bench.server_process import ServerProcess
from rag.sample import corpus_path, questions_path
from serve.settings import hash_api_key
from tests.tiny_generator import tiny_generator
from tests.tiny_reader import tiny_encoder

RETRIEVERS = ("dense", "bm25", "hybrid", "multihop")
ASKED = 400
API_KEY = "a-key-for-the-record"
STEPS = 20
# These say when and how fast, not what.
UNSTABLE = {"seconds", "timings_ms", "created", "created_at", "built_at", "id", "version", "rate_s"}
TOLERANCE = 1e-6

# recipe: what its command takes besides --out and the number of steps.
RECIPES: dict[str, str] = {
    "dpr": "--from {encoder} --train mined.json --set batch_size=4",
    "ance": "--from {encoder} --train mined.json --index index "
    "--set batch_size=4 --set refresh_every_steps=10",
    "mdr": "--from {encoder} --train hops.json --index index --set batch_size=4",
    "ict": "--from {encoder} --corpus {corpus} --set batch_size=4",
    "distill": "--from {encoder} --train scored.json --set batch_size=4",
    "colbert": "--from {encoder} --train mined.json --set batch_size=4",
    "reranker": "--from {encoder} --train mined.json --set batch_size=4",
    "reader": "--config reader-squad --from {encoder} --train {questions} --negatives retrieved.json",
    "generator": "--from {generator} --train retrieved.json --set batch_tokens=1024 "
    "--set 'stages=[{{steps: 20, batch_size: 4, passages: 2, passage_tokens: 64}}]'",
    "orqa": "--train {questions} --index index --set batch_size=4",
    "mlm": "--config mlm-span --corpus index --set batch_size=4",
    "realm": "--config realm-question --index index --reader mlm/mlm --set batch_size=4",
    "rag": "--train {questions} --index index --generator {generator} --set batch_size=4",
    "emdr2": "--train {questions} --index index --generator {generator} --set batch_size=4",
}


class CommandFailedError(Exception):
    """A command of the checkout failed; the message holds its output."""


class House:
    """Runs the commands of a checkout in a folder, and writes what they gave to `record`."""

    def __init__(self, folder: Path, inputs: Path) -> None:
        self.folder = folder
        self.inputs = {
            "corpus": str(inputs / "corpus.jsonl"),
            "questions": str(inputs / "questions.jsonl"),
            "encoder": str(inputs / "encoder"),
            "generator": str(inputs / "generator"),
        }

    def run(self, command: str) -> None:
        """Run `rag COMMAND` in the folder."""
        words = shlex.split(command.format(**self.inputs))
        done = subprocess.run(
            [sys.executable, "-m", "rag.cli.main", *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CommandFailedError(f"rag {' '.join(words)}\n{done.stdout}\n{done.stderr}")

    def keep(self, name: str, make: Callable[[], Any]) -> None:
        """Write what `make` returns as a record, if there is none of this name."""
        file = self.folder / "record" / f"{name}.json"
        if file.exists():
            return
        try:
            value = make()
        except CommandFailedError as error:
            # The other records are still worth making.
            print(f"FAILED {name}: {error}", flush=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True))
        print(f"recorded {name}", flush=True)

    def read(self, file: str) -> Any:
        return json.loads((self.folder / file).read_text())


def make_inputs(inputs: Path) -> None:
    """Write the models and the sample that both checkouts read."""
    if inputs.exists():
        return
    inputs.mkdir(parents=True)
    (inputs / "corpus.jsonl").write_bytes(corpus_path().read_bytes())
    (inputs / "questions.jsonl").write_bytes(questions_path().read_bytes())
    # Reads as many tokens as the presets' passages have.
    tiny_encoder(inputs / "encoder", max_position_embeddings=512)
    tiny_generator(inputs / "generator")


def record_everything(house: House) -> None:
    """Build, search, ask, evaluate and train, and record the outcome of each."""
    house.keep("manifest", lambda: build(house, "index {corpus} --retriever hybrid --out index"))
    for retriever in RETRIEVERS:
        house.keep(f"run-{retriever}", lambda retriever=retriever: search(house, retriever))
        house.keep(f"figures-{retriever}", lambda retriever=retriever: evaluate(house, retriever))
    house.keep("http", lambda: ask_over_http(house))
    house.keep("examples", lambda: make_examples(house))
    for recipe in RECIPES:
        house.keep(f"losses-{recipe}", lambda recipe=recipe: train(house, recipe))


def build(house: House, command: str) -> Any:
    if not (house.folder / "index" / "manifest.json").exists():
        house.run(command)
    return house.read("index/manifest.json")


def search(house: House, retriever: str) -> Any:
    """DPR's JSON and the TREC run of a retriever."""
    given = f"--index index --questions {{questions}} --retriever {retriever} --top-k 20"
    house.run(f"retrieve {given} --out {retriever}.json")
    house.run(f"retrieve {given} --out {retriever}.run")
    run = (house.folder / f"{retriever}.run").read_text().splitlines()
    return {"dpr": house.read(f"{retriever}.json"), "trec": run}


def evaluate(house: House, retriever: str) -> Any:
    out = f"results-{retriever}"
    house.run(
        f"evaluate --index index --questions {{questions}} --retriever {retriever} --out {out}"
    )
    return {
        "metrics": house.read(f"{out}/metrics.json"),
        "predictions": house.read(f"{out}/predictions.squad.json"),
    }


def make_examples(house: House) -> Any:
    """Mine, retrieve and score training examples; write hops of pairs of passages."""
    given = "--index index --questions {questions}"
    house.run(f"mine {given} --source both --out mined.json")
    house.run(f"retrieve {given} --retriever bm25 --top-k 10 --out retrieved.json")
    house.run("score --examples retrieved.json --signal span-likelihood --out scored.json")
    hops = [_two_hops(row) for row in house.read("mined.json") if row["hard_negative_ctxs"]]
    (house.folder / "hops.json").write_text(json.dumps(hops))
    return {"mined": house.read("mined.json"), "scored": house.read("scored.json")}


def _two_hops(row: dict[str, Any]) -> dict[str, Any]:
    """A made question over two paragraphs, in HotpotQA's training form."""
    passages = [*row["positive_ctxs"][:1], *row["hard_negative_ctxs"]]
    return {
        "_id": row["id"],
        "question": row["question"],
        "answer": row["answers"][0],
        "type": "bridge",
        "level": "medium",
        "supporting_facts": [[passage["title"], 0] for passage in passages[:2]],
        "context": [[passage["title"], [passage["text"]]] for passage in passages],
    }


def train(house: House, recipe: str) -> Any:
    """The losses and norms of the first steps of a recipe."""
    shutil.rmtree(house.folder / recipe, ignore_errors=True)
    command = f"train {recipe} {RECIPES[recipe]} --out {recipe}"
    house.run(f"{command} --max-steps {STEPS} --set log_every_steps=1")
    lines = (house.folder / recipe / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def ask_over_http(house: House) -> Any:
    """The bodies of all routes that read, for questions of the sample."""
    lines = Path(house.inputs["questions"]).read_text().splitlines()[:ASKED]
    questions = [json.loads(line)["question"] for line in lines]
    with serving(house) as call:
        listing = call("/v1/documents?limit=50")
        found = call("/v1/retrieve", {"questions": questions[:50], "top_k": 5})
        first = found["results"][0]["hits"][0] if "results" in found else {}
        passage_id = quote(str(first.get("passage_id", "rhine-1")), safe="")
        return {
            "ask": [call("/v1/ask", {"question": question}) for question in questions],
            "ask many": call("/v1/ask", {"questions": questions[:50], "n_best": 3}),
            "bm25": call("/v1/ask", {"question": questions[0], "retriever": "bm25"}),
            "chat": call("/v1/chat/completions", chat(questions[0])),
            "documents": listing,
            "empty": call("/v1/ask", {"question": " "}),
            "models": call("/v1/models"),
            "passage": call(f"/v1/passages/{passage_id}?around=1"),
            "retrieve": found,
            "unknown passage": call("/v1/passages/none-such"),
            "vectors": call("/v1/embeddings", {"input": questions[:3], "input_type": "query"}),
            "wrong field": call("/v1/ask", {"question": questions[0], "topk": 3}),
        }


def chat(question: str) -> dict[str, Any]:
    return {"model": "openqa-rag", "messages": [{"role": "user", "content": question}]}


@contextmanager
def serving(house: House) -> Iterator[Callable[..., Any]]:
    """Serve the index; the value calls a path, with a body or without."""
    keys = {"api_keys": hash_api_key(API_KEY)}
    with ServerProcess(house.folder / "index", settings=keys) as server:
        client = httpx.Client(
            base_url=f"http://{server.host}:{server.port}",
            headers={"X-API-Key": API_KEY},
            timeout=120,
        )

        def call(path: str, body: dict[str, Any] | None = None) -> Any:
            reply = client.get(path) if body is None else client.post(path, json=body)
            if reply.is_error:
                return {"status": reply.status_code, "body": reply.json()}
            return reply.json()

        with client:
            yield call


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where two records differ, numbers by more than TOLERANCE."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            if key in UNSTABLE:
                continue
            if key not in before or key not in after:
                yield f"{path}.{key}: only {'after' if key in after else 'before'}"
            else:
                yield from differences(before[key], after[key], f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{path}: {len(before)} and {len(after)} entries"
        for number, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from differences(old, new, f"{path}[{number}]")
    elif isinstance(before, float) and isinstance(after, float):
        if not math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield f"{path}: {before} and {after}"
    elif before != after:
        yield f"{path}: {str(before)[:80]} and {str(after)[:80]}"


def compare(before: Path, after: Path) -> int:
    """Print for each record how many values differ, and the first of them; returns their number."""
    total = 0
    for file in sorted((before / "record").glob("*.json")):
        other = after / "record" / file.name
        if not other.exists():
            print(f"{file.stem}: not recorded after")
            total += 1
            continue
        found = list(differences(json.loads(file.read_text()), json.loads(other.read_text())))
        total += len(found)
        print(f"{file.stem}: {len(found)} differences")
        for difference in found[:5]:
            print(f"    {difference}")
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    recording = steps.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--inputs", type=Path, required=True)
    comparing = steps.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.step == "compare":
        sys.exit(compare(given.before, given.after) > 0)
    make_inputs(given.inputs)
    given.folder.mkdir(parents=True, exist_ok=True)
    record_everything(House(given.folder.resolve(), given.inputs.resolve()))


if __name__ == "__main__":
    main()
