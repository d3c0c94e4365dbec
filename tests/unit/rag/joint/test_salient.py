"""What is masked: dates and names by rule, names by a model, words and runs of words at random."""

from pathlib import Path

import numpy as np
import pytest
import spacy
import torch
from transformers import BertConfig, BertForTokenClassification

from rag.core.errors import ArtifactError
from rag.core.types import Passage
from rag.data.salient import CapitalTagger, find_dates, title_hashes
from rag.joint.salient import ModelTagger, SpacyTagger, choose_spans, open_tagger
from tests.conftest import TinyModels
from tests.published import published_encoder


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        ("Born 12th of June 1901 or June 13, 1901.", ["12th of June 1901", "June 13, 1901"]),
        ("It may march in May.", []),
        (
            "From March 1850 to the 1860s, 1500 ships, 1,500 men and 1850.5 tons",
            ["March 1850", "1860s", "1500"],
        ),
        ("room 12345 in 0999", []),
    ],
)
def test_dates(text: str, dates: list[str]) -> None:
    assert [text[slice(*span)] for span in find_dates(text)] == dates


def test_another_corpus_has_titles_of_its_own(tmp_path: Path) -> None:
    for title in ("Danube", "Rhine"):
        passages = [Passage("1", title, "x")]
        tagger = open_tagger("salient", None, passages, tmp_path, "cpu", key=title)
        assert tagger is not None
        assert tagger(["Danube rises there.", "Rhine rises there."]).count([]) == 1
        assert len(tagger([f"{title} rises there."])[0]) == 1


def test_names_by_looks_and_by_titles(tmp_path: Path) -> None:
    passages = [
        Passage("1", "Danube (river)", "x"),
        Passage("2", "Danube (river)", "y"),
        Passage("3", "", "z"),
    ]
    hashes = title_hashes(passages, tmp_path / "titles.npy")
    assert len(hashes) == 1
    assert (title_hashes([], tmp_path / "titles.npy") == hashes).all()  # kept
    cases = {
        "Danube rises there.": ["Danube"],  # a title
        "Rivers rise there.": [],  # a sentence's first word
        "The Danube and It rise.": ["Danube"],
        "Ludwig van Beethoven met the Duke of York.": ["Ludwig van Beethoven", "Duke of York"],
        "“The Bank” opened in São Paulo, not I.": ["Bank", "São Paulo"],
        "nothing here": [],
    }
    found = CapitalTagger(hashes)(list(cases))
    said = [[text[slice(*span)] for span in spans] for text, spans in zip(cases, found, strict=True)]
    assert said == list(cases.values())


def test_names_by_a_model(tmp_path: Path, tiny: TinyModels) -> None:
    labels = {0: "O", 1: "B-PER", 2: "I-PER", 3: "I-LOC"}
    torch.manual_seed(0)
    model = BertForTokenClassification(BertConfig(**tiny.config(), id2label=labels, num_labels=4))
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([0.0, 90.0, 0.0, 0.0]))  # every word is a name
    model.save_pretrained(tmp_path)
    tiny.tokenizer(tmp_path)
    tagger = ModelTagger(tmp_path)
    text = "danube wrote abc"
    assert [text[slice(*span)] for span in tagger([text, "the"])[0]] == ["danube", "wrote", "abc"]
    assert tagger([]) == []
    offsets = [(0, 0), (0, 3), (4, 6), (6, 8), (9, 12), (13, 15), (0, 0)]
    spans = tagger._spans([1, 1, 2, 0, 3, 2, 1], offsets)  # "##" pieces belong to their word
    assert spans == [(0, 8), (9, 12), (13, 15)]
    (tmp_path / "plain").mkdir()
    with pytest.raises(ArtifactError, match="has no model"):
        ModelTagger(tmp_path / "plain")


def test_names_by_a_pipeline_of_spacy(tmp_path: Path) -> None:
    pipeline = spacy.blank("en")
    pipeline.add_pipe("sentencizer")  # not needed for names, and not loaded
    rules = pipeline.add_pipe("entity_ruler")
    rules.add_patterns([
        {"label": "GPE", "pattern": "New York"}, {"label": "DATE", "pattern": "1907"},
        {"label": "CARDINAL", "pattern": "three"},
    ])  # fmt: skip
    pipeline.to_disk(tmp_path / "names")
    tagger = open_tagger("salient", f"spacy:{tmp_path / 'names'}", [], tmp_path, "cpu", key="")
    assert isinstance(tagger, SpacyTagger)
    assert tagger._pipeline.pipe_names == ["entity_ruler"]
    text = "In 1907 three of them left New York."
    assert [[text[slice(*span)] for span in spans] for spans in tagger([text, "none"])] == [
        ["1907", "New York"],
        [],
    ]
    with pytest.raises(ArtifactError, match="has no config"):
        SpacyTagger(tmp_path)
    pipeline.remove_pipe("entity_ruler")
    pipeline.to_disk(tmp_path / "none")
    with pytest.raises(ArtifactError, match="has the steps sentencizer, expected one of entity_ruler, ner"):
        SpacyTagger(tmp_path / "none")


def test_a_roberta_finds_names_in_a_sentence_longer_than_its_positions(tmp_path: Path) -> None:
    """Of its 130 positions the first two are no token's."""
    labels = {"id2label": {"0": "O", "1": "B-PER"}, "label2id": {"O": 0, "B-PER": 1}}
    folder = published_encoder(tmp_path, "roberta-base", "ModelForTokenClassification", **labels)
    [spans] = ModelTagger(folder)(["the river is near the city " * 40])
    assert all(end <= 128 * len(" meters") for _, end in spans)


def test_random_masks() -> None:
    text = "one two-three four five six seven eight nine ten eleven twelve thirteen fourteen"
    draw = np.random.default_rng(1)
    assert choose_spans("salient", text, [], draw) == []
    lengths = []
    for _ in range(200):
        single = choose_spans("random", text, [], draw)
        assert len(single) == 2
        assert all(" " not in text[slice(*span)] for span in single)
        [(start, end)] = choose_spans("span", text, [], draw)
        assert not {text[start - 1 : start], text[end : end + 1]} - {" ", ""}
        lengths.append(len(text[start:end].split()))
    assert {1, 2, 3, 10} <= set(lengths) <= set(range(1, 11))
    assert 2.5 < np.mean(lengths) < 5.5
