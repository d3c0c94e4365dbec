from dataclasses import replace

import pytest

from rag.data.documents.blocks import Piece, assemble
from rag.data.records import CorpusOptions
from rag.data.sentences import split_sentences
from rag.data.split import split_documents, word_blocks


@pytest.mark.parametrize(
    "text",
    [
        "Mr. Brown met Dr. A. B. Clark at St. Paul's.|They talked.",
        "It cost $3.5 million in Jan. 2001.|Was it worth it?|Yes!",
        "He moved to the U.S. Army in 1990.|In 1999 he left the U.S.|He never came back.",
        '"Stop!" he said.|"Why?" she asked.',
        "Apple Inc. was founded in 1976.|It is large.",
        "See e.g. Smith et al. 1999 for more.|Other work (cf. Jones) differs.",
        "She wrote it... and then left.|He stayed… Nobody knew."[:-14] + "Nobody knew.",
        "東京は首都です。|人口は多い。",
        "First line|Second line without stop|Third.",
        "George W. Bush spoke.|J. R. R. Tolkien wrote.",
        "The U.S.S.R. Congress met.|No. 5 is a perfume.",
        "Born c. 1870 in Paris, she was No. 1.|Later she left.",
    ],
)
def test_sentences(text: str) -> None:
    expected = text.split("|")
    joiner = "\n" if text.startswith("First line") else "" if "。" in text else " "
    assert split_sentences(joiner.join(expected)) == expected


def test_text_without_spaces_is_cut_into_passages() -> None:
    chinese = "赞布拉的首都是昂哈瓦。" * 2_000
    blocks = word_blocks(chinese, 100)
    assert "".join(blocks) == chinese
    assert max(map(len, blocks)) == 2_000
    address = "https://example.org/" + "x" * 150
    assert word_blocks(f"see {address} there", 100) == [f"see {address} there"]
    mixed = word_blocks("before " + "y" * 250 + " after", 5)
    assert mixed == ["before " + "y" * 80, "y" * 100, "y" * 70 + " after"]


def test_a_row_that_is_cut_is_named_in_the_title_of_each_part() -> None:
    cells = [f"Field {number}: “value; {number}”" for number in range(30)]
    long_cell = "Remark: " + " ".join(f"Sentence {number} of the remark." for number in range(20))
    rows = ["; ".join(["Item: tea", *cells]), f"Item: milk; {long_cell}", "Item: salt; Price: 3"]
    document = replace(
        assemble("Goods", [Piece("row", row) for row in rows]), id="d", path="goods.csv"
    )
    passages = list(split_documents([document], CorpusOptions(max_tokens=64)))
    of_tea = [passage for passage in passages if "Field" in passage.text]
    assert len(of_tea) > 2
    for cell in cells:
        [passage] = [passage for passage in of_tea if cell in passage.text]
        assert "Item: tea" in f"{passage.title} {passage.text}"
    of_milk = [passage for passage in passages if "Sentence" in passage.text]
    assert len(of_milk) > 2
    assert of_milk[0].title == "Goods › Item: milk"
    assert {passage.title for passage in of_milk[1:]} == {"Goods › Item: milk; Remark"}
    assert (passages[-1].title, passages[-1].text) == ("Goods", "Item: salt; Price: 3")
