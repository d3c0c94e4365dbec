"""Token vectors of ColBERT against transformers' class and sentence-transformers, and through
training.
"""

import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from torch.nn import functional
from transformers import AutoTokenizer, BertConfig, BertModel

from rag.core.errors import ArtifactError, ConfigError
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.folders import read_settings
from retrievers.encoders.vectors import Vectors, score
from retrievers.training.bi_encoder import export_model
from tests.support.files import change_json, write_json
from tests.support.messages import refusal
from tests.token_towers import bi_encoder

QUESTIONS = ["who wrote the text?", "danube", "the river " * 20, ""]
TITLES = ["Danube", "", "River", "!"]
PASSAGES = ["the river, rises (in) the forest.", "?!... -", "the black forest, " * 30, "text"]
TEXTS = [f"{title} {text}".strip() for title, text in zip(TITLES, PASSAGES, strict=True)]
LENGTH, QUERY = 40, 16


def colbert_ir(folder: Path, tiny: Any, *, attended: bool) -> dict[str, Any]:
    """The layout of ColBERT's own code: `bert.` and `linear.weight` in one file, and
    `artifact.metadata`.
    """
    tiny.bert(folder)
    weight = torch.randn(6, 32)
    state = {f"bert.{name}": t for name, t in load_file(folder / "model.safetensors").items()}
    save_file(
        state | {"linear.weight": weight}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    change_json(folder / "config.json", architectures=["HF_ColBERT"])
    metadata = {"query_maxlen": QUERY, "doc_maxlen": LENGTH, "mask_punctuation": True, "dim": 6}
    metadata |= {"query_token_id": "[unused0]", "doc_token_id": "[unused1]"}
    metadata |= {"attend_to_mask_tokens": attended}
    write_json(folder / "artifact.metadata", metadata)
    return {"weight": weight, "attended": attended}


def brute_force(folder: Path, made: dict[str, Any], text: str, *, question: bool) -> torch.Tensor:
    """(n, 6) vectors that count of one text, by the formulas of the paper."""
    state = {n.removeprefix("bert."): t for n, t in load_file(folder / "model.safetensors").items()}
    state.pop("linear.weight", None)
    model = BertModel(BertConfig.from_pretrained(folder), add_pooling_layer=False).eval()
    model.load_state_dict(state)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    marker = tokenizer.convert_tokens_to_ids("[unused0]" if question else "[unused1]")
    longest = (QUERY if question else LENGTH) - 1
    ids = tokenizer(text, truncation=True, max_length=longest)["input_ids"]
    ids = [ids[0], marker, *ids[1:]]
    seen = [1] * len(ids)
    skipped = set(tokenizer.convert_tokens_to_ids(list(string.punctuation)))
    if question:
        skipped.clear()
        filled = QUERY - len(ids)
        ids += [tokenizer.mask_token_id] * filled
        seen += [int(made["attended"])] * filled
    with torch.no_grad():
        output = model(torch.tensor([ids]), attention_mask=torch.tensor([seen]))
    hidden = output.last_hidden_state[0]
    kept = [place for place, token in enumerate(ids) if token not in skipped]
    return functional.normalize(hidden @ made["weight"].T, dim=-1)[kept]


def compare(actual: Vectors, expected: Any) -> None:
    assert actual.lengths is not None
    assert actual.lengths.tolist() == [len(vectors) for vectors in expected]
    values = torch.cat([torch.as_tensor(vectors) for vectors in expected])
    torch.testing.assert_close(actual.values, values, atol=2e-5, rtol=1e-4)


def compare_with_peer(encoder: BiEncoder, folder: Path) -> None:
    """Fail unless the vectors are those of sentence-transformers."""
    peer = MultiVectorEncoder(str(folder), device="cpu")
    compare(encoder.question_tokens(QUESTIONS), peer.encode_query(QUESTIONS))
    compare(encoder.passage_tokens(TITLES, PASSAGES), peer.encode_document(TEXTS))


@pytest.mark.parametrize("attended", [False, True])
def test_colberts_checkpoint_written_anew_makes_the_vectors_of_the_paper(
    tmp_path: Path, tiny: Any, attended: bool
) -> None:
    torch.manual_seed(4)
    made = colbert_ir(tmp_path / "own", tiny, attended=attended)
    with refusal(ArtifactError):
        read_settings(tmp_path / "own")
    folder = tmp_path / "start"
    MultiVectorEncoder(str(tmp_path / "own"), device="cpu").save_pretrained(str(folder))
    queries = [brute_force(tmp_path / "own", made, text, question=True) for text in QUESTIONS]
    documents = [brute_force(tmp_path / "own", made, text, question=False) for text in TEXTS]
    assert all(len(each) == QUERY for each in queries)
    encoder = BiEncoder.load(folder, precision="fp32")
    compare(encoder.question_tokens(QUESTIONS), queries)
    compare(encoder.passage_tokens(TITLES, PASSAGES), documents)
    scores = score(encoder.question_tokens(QUESTIONS), encoder.passage_tokens(TITLES, PASSAGES))
    expected = torch.tensor([[float((q @ p.T).amax(1).sum()) for p in documents] for q in queries])
    torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-4)

    # trained and written, it is a folder of sentence-transformers with the same vectors
    settings = {"question_tokens": QUERY, "passage_tokens": LENGTH}
    model = bi_encoder(folder, **settings, dropout=0.0)
    rows = encoder._passage.tokenizer.passages([""] * len(TEXTS), TEXTS)
    token_ids = [np.asarray(ids, np.int32) for ids in rows]
    compare(model.passage.encode(token_ids, model.chunk()), documents)
    written = export_model(tmp_path / "new", model, {}, model.settings.passage)
    again = BiEncoder.load(written, precision="fp32")
    compare(again.question_tokens(QUESTIONS), queries)
    compare(again.passage_tokens(TITLES, PASSAGES), documents)
    compare_with_peer(again, written)


@pytest.mark.parametrize(
    ("reading", "prompts"),
    [
        (
            {"query_expansion": {"strategy": "fixed", "length": QUERY}, "document_length": LENGTH},
            "[unused{}] ",
        ),
        ({"query_expansion": {"strategy": "fixed", "length": QUERY, "attend": True}}, "who {}: "),
        ({"query_length": QUERY, "document_length": LENGTH}, ""),
    ],
    ids=["filled", "attended", "as-they-are"],
)
def test_folders_of_sentence_transformers_own_late_interaction_make_its_vectors(
    tmp_path: Path, tiny: Any, reading: Any, prompts: str
) -> None:
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    torch.manual_seed(4)
    projection = {"bias": False, "activation_function": torch.nn.Identity()}
    tokens = {"module_input_name": "token_embeddings"}
    modules = [
        Transformer(str(tiny.bert(tmp_path / "bare")), **reading),
        Dense(32, 6, **projection, **tokens),
        MultiVectorMask([".", ","]),
        Normalize(**tokens),
    ]
    made = {"query": prompts.format(0), "document": prompts.format(1)} if prompts else None
    MultiVectorEncoder(modules=modules, prompts=made, device="cpu").save_pretrained(
        str(tmp_path / "saved")
    )
    encoder = BiEncoder.load(tmp_path / "saved", precision="fp32")
    compare_with_peer(encoder, tmp_path / "saved")
    for path, change in (
        ("sentence_bert_config.json", {"query_expansion": {"strategy": "min", "length": 9}}),
        ("2_MultiVectorMask/config.json", {"skiplist_tasks": ["query", "document"]}),
    ):
        file = tmp_path / "saved" / path
        before = file.read_text()
        change_json(file, **change)
        with refusal(ArtifactError):
            read_settings(tmp_path / "saved")
        file.write_text(before)


def test_what_decides_the_vectors_is_part_of_the_identity(tmp_path: Path, tiny: Any) -> None:
    tiny.late_interaction(tmp_path / "one")
    one = BiEncoder.load(tmp_path / "one").identity
    change_json(tmp_path / "one/2_MultiVectorMask/config.json", skiplist_words=[])
    other = BiEncoder.load(tmp_path / "one").identity
    assert one.differences(other)[0].startswith("interaction: ")
    assert type(one).from_json(one.to_json()) == one


def test_markers_are_those_of_the_vocabulary_and_masks_must_be_there(
    tmp_path: Path, tiny: Any
) -> None:
    folder = tiny.bert(tmp_path)
    settings = {"pooling": "tokens", "question_tokens": 12, "passage_tokens": 30}
    model = bi_encoder(folder, **settings)
    assert model.settings.question.query_prefix == "[unused0] "
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("[unused1]", "unused"))
    assert bi_encoder(folder, **settings).settings.question.query_prefix == ""
    path.write_text(path.read_text().replace("[MASK]", "mask"))
    with refusal(ConfigError):
        bi_encoder(folder, **settings)
    assert read_settings(folder).interaction is None
