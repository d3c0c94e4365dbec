import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace

from rag.core.errors import ArtifactError, ConfigError
from rag.core.types import Passage, Query
from retrievers.encoders.open import load_encoder
from retrievers.encoders.static import StaticEncoder, write_static
from tests.support.messages import refusal

WORDS = ["[UNK]", "danube", "rhine", "river", "black", "forest", "sea", "##s", "rises", "the", "in"]
TEXTS = ["The Danube rises in the Black Forest", "rivers", "", "unknown words and the sea"]


def tokenizer() -> Tokenizer:
    made = Tokenizer(WordPiece({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = Lowercase(), Whitespace()
    return made


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(len(WORDS), 8)).astype(np.float32)


def as_model2vec(folder: Path, vectors: np.ndarray, tokenizer: Tokenizer) -> Path:
    """A folder as model2vec writes it, with rows of int8 and a weight each."""
    folder.mkdir(parents=True, exist_ok=True)
    scales = np.abs(vectors).max(axis=1) / 127
    rows = np.rint(vectors / scales[:, None]).astype(np.int8)
    save_file(
        {"embeddings": rows, "weights": scales.astype(np.float32)}, folder / "model.safetensors"
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}))
    return folder


def by_hand(vectors: np.ndarray, texts: list[str], *, is_model2vec: bool = False) -> np.ndarray:
    """Unit vectors; with `is_model2vec` plain means, without unknown tokens."""
    rows = []
    for text in texts:
        ids = tokenizer().encode(text, add_special_tokens=False).ids
        if is_model2vec:
            ids = [token for token in ids if token != tokenizer().token_to_id("[UNK]")]
        mean = vectors[ids].mean(axis=0) if ids else np.zeros(vectors.shape[1])
        rows.append(mean / max(np.linalg.norm(mean), 1e-12) if not is_model2vec else mean)
    return np.array(rows)


def test_what_is_written_opens_in_sentence_transformers(
    tmp_path: Path, vectors: np.ndarray
) -> None:
    cutting = tokenizer()
    cutting.enable_truncation(1)
    cutting.save(str(tmp_path / "tokenizer.json"))
    texts = [*TEXTS, "danube " * 400 + "sea " * 400]
    for _ in range(2):  # an earlier folder is replaced
        write_static(place := tmp_path / "made", vectors, tmp_path)
    made = load_encoder(place).encode_questions(texts)
    np.testing.assert_allclose(made[:-1], by_hand(vectors, TEXTS), atol=0.02)
    theirs = SentenceTransformer(str(place), device="cpu")
    np.testing.assert_allclose(theirs.encode(texts), made, atol=2e-3)
    assert theirs.similarity_fn_name == "cosine"


def test_mapping_and_weights_of_model2vec(tmp_path: Path, vectors: np.ndarray) -> None:
    mapping = np.random.default_rng(0).integers(0, 5, len(WORDS))
    weights = np.linspace(0.1, 2.0, len(WORDS))
    save_file(
        {"embeddings": vectors[:5].astype(np.float16), "mapping": mapping, "weights": weights},
        tmp_path / "model.safetensors",
    )
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "model2vec", "normalize": False})
    )
    encoder = StaticEncoder.load(tmp_path)
    full = vectors[:5].astype(np.float16).astype(np.float32)[mapping] * weights[:, None]
    np.testing.assert_allclose(
        encoder.encode_questions(TEXTS), by_hand(full, TEXTS, is_model2vec=True), atol=1e-6
    )
    assert encoder.identity.similarity == "dot"


def test_a_text_is_its_title_and_its_first_tokens(tmp_path: Path, vectors: np.ndarray) -> None:
    as_model2vec(tmp_path, vectors, tokenizer())
    encoder = StaticEncoder.load(tmp_path, query_prefix="sea ", max_length=3)
    both = encoder.encode_passages(["Danube", ""], ["river in the sea", "danube river in"])
    np.testing.assert_array_equal(both[0], both[1])
    alone = StaticEncoder.load(tmp_path).encode_questions(["sea river"])
    np.testing.assert_array_equal(encoder.encode_questions(["river"]), alone)
    hop = Query("river", (Passage("1", "", "danube"),))
    np.testing.assert_array_equal(
        encoder.encode_queries([hop]),
        StaticEncoder.load(tmp_path).encode_questions(["sea river danube"]),
    )


def test_bad_folders_and_settings_are_refused(tmp_path: Path, vectors: np.ndarray) -> None:
    place = as_model2vec(tmp_path / "a", vectors, tokenizer())
    own = place / "config_sentence_transformers.json"
    own.write_text(json.dumps({"truncate_dim": 4}))
    with refusal(ArtifactError):
        StaticEncoder.load(place)
    own.unlink()
    with refusal(ConfigError):
        load_encoder(place, pooling="cls")
    with pytest.raises(ValueError, match="shorter"):
        load_encoder(place).encode_passages(["a", "b"], ["c"])
    save_file({"embeddings": vectors[:4]}, place / "model.safetensors")
    with refusal(ArtifactError):
        load_encoder(place)
    save_file({"other": vectors}, place / "model.safetensors")
    with refusal(ArtifactError):
        load_encoder(place)


def test_the_commands_that_index_and_search_with_it_import_no_torch(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(
        json.dumps({"id": "q", "question": "who is there?", "answers": ["a"]})
    )
    program = """
import sys; from rag.cli.main import main
for command in ("index sample --encoder static --retriever dense --out i",
                "retrieve --index i --questions q.jsonl --out run.json --top-k 3"):
    try: main(command.split())
    except SystemExit as error: assert not error.code, error.code
sys.exit(str([name for name in ("torch", "transformers", "sentence_transformers") if name in sys.modules]))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stderr.strip().endswith("[]"), done.stderr
    assert len(json.loads((tmp_path / "run.json").read_text())[0]["ctxs"]) == 3
