"""Time, memory and disk of building and serving an index, beside the estimates of `rag plan`."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import IO, Any

import numpy as np

from rag.bench.common import leave_cache
from rag.bench.load import latency_interval
from rag.bench.report import Goal, Report, Table, format_bytes
from rag.bench.server_process import ServerProcess, end_of_log, post_json
from rag.core.errors import DataError, ResourceError
from rag.core.files import read_json
from rag.core.manifest import LEDGER_NAME, read_manifest
from rag.core.progress import format_seconds
from rag.core.types import Question
from rag.data.text import MatchMode
from rag.metrics.ranking import answer_flags
from rag.metrics.significance import bootstrap

MEMORY_GOAL, START_GOAL_S, ANSWER_GOAL_S, PLAN_GOAL = 8e9, 10.0, 0.25, 0.2
_LOOK_EVERY_S, _WALK_EVERY_S = 0.2, 3.0
_TICKS = os.sysconf("SC_CLK_TCK")
_STARTING, _FINISHING = "start", "manifest"  # what is done before the first stage and after the last
_PARTS = {"dense": "faiss", "bm25": "lucene", "passages": "passages", "embeddings": "embeddings"}


@dataclass(slots=True)
class _Built:
    """Measurements of the processes that built the index.

    Attributes:
        wall_s, cpu_s: seconds by the stage that they ended with.
        peak_bytes, own_bytes: the most resident memory, mapped files included and without them.
        disk_bytes: the most that the index directory held.
        killed: stages in which a process was killed.
    """

    wall_s: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    peak_bytes: int = 0
    own_bytes: int = 0
    disk_bytes: int = 0
    killed: list[str] = field(default_factory=list)


def run_build_benchmark(
    corpus: list[str],
    questions: Path,
    out: Path,
    encoder: str = "static",
    index_type: str = "rabitq",
    retriever: str = "hybrid",
    recall_target: float | None = None,
    n: int = 200,
    top_k: int = 20,
    kill: str = "",
    kill_after: int = 10,
    format: str = "auto",
) -> Report:
    """Build an index with `rag index`, serve it with `rag serve`, ask it questions; all beside `rag plan`.

    Resident memory includes pages of mapped files. The files leave the page cache before the server starts.

    Args:
        questions: Question file with answers: SQuAD, DPR, JSONL … (.gz too).
        out: Index directory, kept; one that exists is continued, and only what is left is timed.
        encoder: Encoder of the index.
        index_type: Type of the vector index.
        recall_target: Recall for which it is tuned; that of `rag index` if not given.
        n: Questions to ask, drawn at random.
        top_k: Passages to read, and ranks among which an answer counts as retrieved.
        kill: Stages, separated by commas, in which the build is killed once (kill -9) and continued.
        kill_after: Seconds from the beginning of such a stage to the kill.

    Raises:
        ResourceError: the build or the server failed.
    """
    from rag.data.questions import draw_sample, read_questions

    continued = out.exists()
    report = Report(
        "build",
        {
            "corpus": ", ".join(corpus), "encoder": encoder, "index_type": index_type,
            "retriever": retriever, "recall_target": recall_target, "questions": questions, "n": n,
            "top_k": top_k, "kill": kill,
        },
    )  # fmt: skip
    given = ["--retriever", retriever, "--index-type", index_type, "--encoder", encoder]
    asked = draw_sample(read_questions(questions, format=format), n, 0)
    command = [*_rag("index"), *corpus, "--split", "none", *given, "--out", str(out)]
    if recall_target is not None:
        command += ["--recall-target", str(recall_target)]
    built = _build(command, out, {stage.strip() for stage in kill.split(",") if stage.strip()}, kill_after)
    if continued:
        report.notes.append(f"{out} was there before: the times are those of what was left to do")
    passages, disk = _disk(out)
    served = _serve(out, asked, retriever, top_k)
    _fill(report, built, served, _plan(out, passages, given, len(asked), top_k), passages, disk)
    return report


def _rag(command: str) -> list[str]:
    return [sys.executable, "-m", "rag.cli.main", command]


def _build(command: list[str], out: Path, kill: set[str], after_s: float) -> _Built:
    built = _Built()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        while (stage := _attempt(command, out, kill - set(built.killed), after_s, built, log)) is not None:
            built.killed.append(stage)
    return built


def _attempt(
    command: list[str], out: Path, kill: set[str], after_s: float, built: _Built, log: IO[str]
) -> str | None:
    """Run the build to its end, or until a stage of `kill` has worked for `after_s` seconds: which one."""
    process = subprocess.Popen(command, stdout=log, stderr=log)
    stage, began = _STARTING, time.monotonic()
    looked, cpu_before, walked = began, 0.0, began
    try:
        while process.poll() is None:
            time.sleep(_LOOK_EVERY_S)
            now, seen = time.monotonic(), _look(process.pid)
            if seen is not None:
                built.cpu_s[stage] = built.cpu_s.get(stage, 0.0) + seen.cpu_s - cpu_before
                cpu_before = seen.cpu_s
                built.peak_bytes = max(built.peak_bytes, seen.peak_bytes)
                built.own_bytes = max(built.own_bytes, seen.own_bytes)
            built.wall_s[stage] = built.wall_s.get(stage, 0.0) + now - looked
            looked = now
            if (current := _stage(out)) != stage:
                stage, began = current, now
            if now - walked > _WALK_EVERY_S:
                walked, built.disk_bytes = now, max(built.disk_bytes, _directory_bytes(out))
            if stage in kill and now - began >= after_s:
                return stage
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
    if process.returncode:
        raise ResourceError(
            f"`rag index` ended with code {process.returncode}; the end of its log: {end_of_log(log)}"
        )
    return None


@dataclass(frozen=True, slots=True)
class _Seen:
    cpu_s: float
    peak_bytes: int
    own_bytes: int


def _look(pid: int) -> _Seen | None:
    """Processor time and memory of a process by Linux's files; None if it has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        size_kib = {line.split()[0]: int(line.split()[1]) for line in status if line.endswith(" kB")}
        counted = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        cpu_s = (int(counted[11]) + int(counted[12])) / _TICKS  # of user and system
        return _Seen(cpu_s, 1024 * size_kib["VmHWM:"], 1024 * size_kib["RssAnon:"])
    except (OSError, KeyError, IndexError):
        return None


def _stage(out: Path) -> str:
    """The stage that a build works on, by its ledger."""
    try:
        stages = read_json(out / LEDGER_NAME)
    except DataError:
        return _STARTING
    working = [name for name, stage in stages.items() if not stage.get("finished")]
    return working[0] if working else _FINISHING


def _directory_bytes(place: Path) -> int:
    total = 0
    for path in place.rglob("*"):
        with suppress(OSError):  # temporary files come and go
            total += path.stat().st_size
    return total


def _disk(out: Path) -> tuple[int, dict[str, int]]:
    """Passages of a finished index, and its bytes by part as `rag plan` names them."""
    manifest = read_manifest(out)
    parts: dict[str, int] = {}
    for name, entry in manifest["files"].items():
        part = _PARTS.get(name.partition("/")[0], "ledger")
        parts[part] = parts.get(part, 0) + entry["size_bytes"]
    return manifest["passages"]["count"], parts


@dataclass(frozen=True, slots=True)
class _Served:
    start_s: float
    start_cpu_s: float
    ask_cpu_s: float  # of a question, in the mean
    peak_bytes: int
    own_bytes: int
    latencies_s: list[float]
    stages_ms: dict[str, float]  # median of each
    found: list[bool]  # an answer stands in one of the passages


def _serve(out: Path, asked: list[Question], retriever: str, top_k: int) -> _Served:
    leave_cache(out)
    latencies, timings, found = [], [], []
    with (
        ServerProcess(out, arguments=["--retriever", retriever]) as server,
        closing(HTTPConnection(server.host, server.port, timeout=300)) as connection,
    ):
        ready = _look(server.pid)
        for question in asked:
            body = {"question": question.text, "top_k": top_k}
            began = time.perf_counter()
            answer = post_json(connection, "/v1/ask", body)
            latencies.append(time.perf_counter() - began)
            timings.append(answer["timings_ms"])
        seen = _look(server.pid)  # before the passages themselves are asked for
        for question in asked:
            answer = post_json(connection, "/v1/retrieve", {"question": question.text, "top_k": top_k})
            mode: MatchMode = "regex" if question.answers_are_regex else "tokens"
            found.append(any(answer_flags(question.answers, [hit["text"] for hit in answer["hits"]], mode)))
    if ready is None or seen is None:
        raise ResourceError("the server ended before its memory was read", hint="look at the system's log")
    stages = {name: float(np.median([each.get(name, 0.0) for each in timings])) for name in timings[0]}
    return _Served(
        server.ready_after_s, ready.cpu_s, (seen.cpu_s - ready.cpu_s) / len(asked), seen.peak_bytes,
        seen.own_bytes, latencies, stages, found,
    )  # fmt: skip


def _plan(out: Path, passages: int, given: list[str], questions: int, top_k: int) -> dict[str, Any]:
    """The estimates of `rag plan` for this index on this machine."""
    from indexers.index import Index

    with Index.open(out) as index:
        sample = index.passages.get_many(range(0, passages, max(1, passages // 1000)))
    mean_bytes = sum(len((one.title + one.text).encode()) for one in sample) / len(sample)
    asked = ["--passage-bytes", f"{mean_bytes:.1f}", "--questions", str(questions), "--read", str(top_k)]
    command = [*_rag("plan"), "--passages", str(passages), *given, *asked, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ResourceError(f"`rag plan` failed: {done.stderr[-500:].strip()}")
    planned: dict[str, Any] = json.loads(done.stdout)
    return planned


def _fill(
    report: Report,
    built: _Built,
    served: _Served,
    planned: dict[str, Any],
    passages: int,
    disk: dict[str, int],
) -> None:
    wall_s, cpu_s = sum(built.wall_s.values()), sum(built.cpu_s.values())
    p50, p95 = (latency_interval(served.latencies_s, percent) for percent in (50, 95))
    top = bootstrap([float(flag) for flag in served.found])[0]
    figures = {
        **{f"build {stage}, s": seconds for stage, seconds in built.wall_s.items()},
        **{f"build {stage}, CPU s": seconds for stage, seconds in built.cpu_s.items()},
        "build, s": wall_s,
        "build, CPU s": cpu_s,
        "build, peak resident bytes": built.peak_bytes,
        "build, peak own bytes": built.own_bytes,
        "build, peak disk bytes": built.disk_bytes,
        **{f"disk {part}, bytes": size for part, size in disk.items()},
        "disk, bytes": sum(disk.values()),
        "serve start, s": served.start_s,
        "serve start, CPU s": served.start_cpu_s,
        "serve, peak resident bytes": served.peak_bytes,
        "serve, own bytes": served.own_bytes,
        "ask, median s": p50.value,
        "ask, p95 s": p95.value,
        "ask, mean CPU s": served.ask_cpu_s,
        **{f"ask {stage}, median ms": value for stage, value in served.stages_ms.items()},
    }
    report.figures |= {
        "passages": passages, "measured": figures, "ask_s": {"p50": p50, "p95": p95},
        "answer in the top": top, "killed": built.killed, "plan": planned,
    }  # fmt: skip
    stages = [
        (stage, format_seconds(seconds), format_seconds(built.cpu_s.get(stage, 0.0)))
        for stage, seconds in built.wall_s.items()
    ]
    stages.append(("all", format_seconds(wall_s), format_seconds(cpu_s)))
    rates = (f"{passages / wall_s:,.0f}", f"{passages / cpu_s:,.0f}")
    stages.append(("passages per second", *rates))
    report.tables.append(Table(f"building {passages:,} passages", ("stage", "time", "CPU time"), stages))
    shown = [
        ("start", format_seconds(served.start_s)),
        ("  of processor time", format_seconds(served.start_cpu_s)),
        ("/v1/ask, first question", format_seconds(served.latencies_s[0])),
        ("/v1/ask, median ms", f"{p50.times(1000):.0f}"),
        ("/v1/ask, p95 ms", f"{p95.times(1000):.0f}"),
        ("  of processor time, mean", format_seconds(served.ask_cpu_s)),
        *((f"  {stage}, median", f"{value:.1f} ms") for stage, value in served.stages_ms.items()),
        ("answer in the passages, %", f"{top.times(100):.1f}"),
    ]
    report.tables.append(Table(f"serving, {len(served.found)} questions one by one", ("", "figure"), shown))
    _compare(report, built, served, planned, disk)
    if built.killed:
        report.notes.append(f"killed with kill -9 and continued in: {', '.join(built.killed)}")
    report.goals += [
        Goal("resident while building, bytes", built.peak_bytes, "at most", MEMORY_GOAL),
        Goal("resident while serving, bytes", served.peak_bytes, "at most", MEMORY_GOAL),
        Goal("start of the server, s", served.start_s, "at most", START_GOAL_S),
        Goal("/v1/ask, median s", p50.value, "at most", ANSWER_GOAL_S),
    ]


def _compare(
    report: Report, built: _Built, served: _Served, planned: dict[str, Any], disk: dict[str, int]
) -> None:
    """Each figure beside the plan's."""
    pairs = [(f"disk, {part}", float(disk[part]), planned["disk_bytes"].get(part)) for part in disk]
    pairs.append(
        ("disk, working space", built.disk_bytes - sum(disk.values()), planned["working_disk_bytes"])
    )
    pairs.append(("memory, building", built.peak_bytes, planned["build_peak_bytes"]))
    pairs.append(("memory, serving", served.peak_bytes, planned["serving_total_bytes"]))
    sizes = [(name, format_bytes, found, stated) for name, found, stated in pairs]
    times = [
        (f"time, {stage}", format_seconds, seconds, planned["build_s"].get(stage))
        for stage, seconds in built.wall_s.items()
    ]
    rows, shares = [], {}
    for name, form, found, stated in (*sizes, *times):
        if stated:  # `flat` needs no working space
            shares[name] = found / stated
            rows.append((name, form(found), form(stated), f"{shares[name]:.2f}"))
    report.figures["measured_over_planned"] = shares
    report.tables.append(Table("beside `rag plan`", ("", "measured", "planned", "ratio"), rows))
    off = max(abs(share - 1.0) for share in shares.values())
    report.goals.append(Goal("largest distance from the plan", off, "at most", PLAN_GOAL))
