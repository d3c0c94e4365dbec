"""Import RAG checkpoints of transformers (`facebook/rag-*`): a reader's folder with a question encoder."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, RagModel

from indexers.index import Index
from rag.core.errors import ArtifactError, MismatchedArtifactError
from rag.core.files import atomic_path, check_target
from rag.core.log import get_logger
from rag.runtime.backbone import loading
from readers.generative.settings import GeneratorManifest, GeneratorSettings
from retrievers.bound import QUESTION_ENCODER, binding

_PARTS = ("question_encoder", "generator")


def import_rag(source: str | Path, out: Path, index: str | Path | None = None) -> Path:
    """Write the generator and the question encoder of a RAG checkpoint as one reader's folder.

    Args:
        source: folder or Hugging Face name; weights are `question_encoder.*` and `generator.*`, tokenizers
            lie in `question_encoder_tokenizer/` and `generator_tokenizer/`.
        out: folder to write.
        index: the passages that it is to search, by the passage encoder that the question encoder was trained
            with; the reader is bound to it. None: questions are encoded as the index says.

    Raises:
        ArtifactError: it is no RAG checkpoint, or a part is missing.
        ConfigError: `out` holds something.
        MismatchedArtifactError: the index's vectors are of another size.
    """
    check_target(out, folder=True, is_new=True)
    hint = (
        "expected config.json of type rag, weights and both tokenizers' folders; copy the whole folder again"
    )
    with loading(f"{source}: no RAG checkpoint of transformers, or a damaged one", hint=hint):
        config: Any = AutoConfig.from_pretrained(source)
        if config.model_type != "rag":
            raise ValueError(f"a {config.model_type} model")
        stated = PreTrainedConfig.get_config_dict(source)[0]["generator"]  # transformers drops some of it
        model, report = RagModel.from_pretrained(source, output_loading_info=True)
        tokenizers = [AutoTokenizer.from_pretrained(source, subfolder=f"{part}_tokenizer") for part in _PARTS]
    if missing := sorted(report["missing_keys"]):
        raise ArtifactError(
            f"{source}: {len(missing)} tensors are missing, as {missing[0]}",
            hint="copy the whole folder again",
        )
    named = config.architectures or ()
    is_token = any("Token" in name for name in named)
    if not is_token and not any("Sequence" in name for name in named):
        get_logger(__name__).warning(
            "%s names neither RAG-Sequence nor RAG-Token: taking RAG-Sequence, the mode in its reader.json",
            source,
        )
    settings = GeneratorSettings(
        mode="rag-token" if is_token else "rag-sequence",
        template=_template(config, stated.get("prefix") or ""),
        passage_tokens=config.max_combined_length,
        answer_tokens=int(stated.get("max_length") or 20),
    )
    model.generator.generation_config.forced_bos_token_id = stated.get("forced_bos_token_id")
    manifest = GeneratorManifest(name=Path(str(source)).name, settings=settings)
    with atomic_path(out) as temporary:
        parts: dict[str, Any] = {QUESTION_ENCODER: model.question_encoder, ".": model.generator}
        for (name, part), tokenizer in zip(parts.items(), tokenizers, strict=True):
            part.save_pretrained(temporary / name)
            tokenizer.save_pretrained(temporary / name)
        if index is not None:
            manifest = manifest.model_copy(update={"retriever": _bound(temporary, index)})
        manifest.save(temporary)
    if index is None:
        get_logger(__name__).warning(
            "%s is bound to no index: its own question encoder is not used; give --index to use it", out
        )
    return out


def _bound(folder: Path, index: str | Path) -> dict[str, Any]:
    with Index.open(index) as searched:
        identity = searched.require_dense().encoder
    found = binding(folder, identity)
    if found["dim"] != identity.dim:
        raise MismatchedArtifactError(
            f"the question encoder's vectors have {found['dim']} dimensions, those of {index} {identity.dim}",
            hint="index the passages with the passage encoder that it was trained with",
        )
    return found


def _template(config: Any, prefix: str) -> str:
    before, title, text = (
        part.replace("{", "{{").replace("}", "}}") for part in (prefix, config.title_sep, config.doc_sep)
    )
    return f"{before}{{title}}{title}{{text}}{text}{{question}}"
