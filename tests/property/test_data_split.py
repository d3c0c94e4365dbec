"""Properties of splitting: nothing is lost, nothing is invented."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rag.data.records import CorpusOptions, Document
from rag.data.sentences import split_sentences
from rag.data.split import split_documents, word_blocks

texts = st.lists(st.text(alphabet="aBc.!? \n\t'\"。U", min_size=1, max_size=8), max_size=40).map(
    " ".join
)
sizes = st.integers(1, 9)


@settings(max_examples=50, deadline=None)
@given(texts, sizes)
def test_wrapping_appends_the_beginning_and_nothing_else(text: str, size: int) -> None:
    words = text.split()
    wrapped = " ".join(word_blocks(text, size)).split()
    assert wrapped[: len(words)] == words
    tail = wrapped[len(words) :]
    assert tail == words[: len(tail)]
    assert len(tail) < size
    if len(words) >= size:
        assert len(wrapped) % size == 0
    else:
        assert not tail


@settings(max_examples=50, deadline=None)
@given(texts)
def test_sentences_keep_every_visible_character(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


@settings(max_examples=50, deadline=None)
@given(st.lists(texts, max_size=6), st.sampled_from(["words100", "none"]))
def test_ids_are_unique_and_the_result_is_the_same_every_time(
    contents: list[str], mode: str
) -> None:
    documents = [
        Document(f"d-{i}" if i % 2 else f"d-{i}-0", "t", text) for i, text in enumerate(contents)
    ]
    options = CorpusOptions(split=mode, words=5)
    passages = list(split_documents(documents, options))
    assert len({passage.id for passage in passages}) == len(passages)
    assert passages == list(split_documents(documents, options))
