"""What PDFs give: headings, lists and pages, and what of them is no text for people."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest

from rag.core.types import page_at
from rag.data.documents.blocks import Piece, assemble, clean
from rag.data.documents.convert import convert
from rag.data.documents.pdf import _text_piece, _without_hyphenation
from rag.data.documents.pdf_page import Line
from rag.data.documents.read import document_from
from tests import document_makers as make
from tests.document_makers import CONTENT, blocks, levels, of, texts


def page(*texts: str) -> list[make.Line]:
    """A page of lines below each other."""
    return [(50.0, 700.0 - 13 * n, 10.0, "F", text) for n, text in enumerate(texts)]


def test_pdf_by_font_sizes() -> None:
    assert of(make.pdf_of(CONTENT[:-1]), "a.pdf") == of(make.markdown(CONTENT[:-1]), "a.md")


def test_pdf_outline_labels_running_heads_and_hyphens() -> None:
    pages = []
    for number in range(6):
        mark = f"Chapter {number + 1}:" if number == 5 else f"{number + 1}."
        pages.append(
            [
                (50.0, 820.0, 9.0, "F", f"The manual, chapter {number}"),
                (50.0, 20.0, 9.0, "F", str(number + 5)),
                (50.0, 700.0, 10.0, "B", f"{mark} Part {'abcdef'[number]}"),
                (50.0, 680.0, 10.0, "F", f"Text of part {number}, which fills the"),
                (50.0, 667.0, 10.0, "F", "line and goes on."),
                (50.0, 640.0, 10.0, "F", "Another paragraph."),
            ]
        )
    outline = [(f"Part {letter}", page) for page, letter in enumerate("abcdef")]
    data = make.pdf(pages, outline, labels="0<</S/r>>2<</S/D/St 7>>", title="The Manual")
    converted = convert(data, "a.pdf")
    assert converted.title == "The Manual"
    assert blocks(converted)[:3] == [
        "heading: 1. Part a",
        "paragraph: Text of part 0, which fills the line and goes on.",
        "paragraph: Another paragraph.",
    ]
    assert len(converted.blocks) == 18
    assert {block.kind for block in converted.blocks[::3]} == {"heading"}
    pages = [page_at(converted.pages, block.start) for block in converted.blocks[::3]]
    assert pages == ["i", "ii", "7", "8", "9", "10"]


def test_a_block_of_a_pdf_that_goes_on_over_pages_knows_where_each_begins() -> None:
    pages = [
        page("1. An entry that goes on and an unfin-"),
        page("ished word, and still it goes"),
        page("on  with it to the end.", "Then nothing."),
    ]
    converted = convert(make.pdf(pages, labels="0<</S/r>>1<</S/D/St 7>>"), "a.pdf")
    assert converted.text.startswith("1. An entry that goes on and an unfinished word")
    begins = [(label, converted.text[at : at + 8]) for at, label in converted.pages]
    assert begins == [("i", "1. An en"), ("7", "ished wo"), ("8", "on with ")]
    sent = json.dumps(asdict(converted)).encode()  # as a converting process does
    assert document_from(sent, "my a.pdf") == replace(
        converted, id="my a.pdf", title="my a", path="my a.pdf"
    )


def test_hyphens_at_the_ends_of_lines_are_those_of_words_or_of_syllables() -> None:
    """By how the document spells a word elsewhere, else by what stands around the hyphen."""
    pages = [
        page(
            "It is read by the set-", "tings of ISO-", "8601, and by --dry-", "run for the multi-"
        ),
        page("part form of a co-", "operative X-", "ray. So co-operative, for coopera-", "tion."),
        page("The well-", "known self-", "test of the high-", "lights of real-", "ity."),
    ]
    assert of(make.pdf(pages), "a.pdf") == [
        "paragraph: It is read by the settings of ISO-8601, and by --dry-run for the multipart "
        "form of a co-operative X-ray. So co-operative, for cooperation.",
        "paragraph: The well-known self-test of the highlights of reality.",
    ]


def test_hyphens_that_are_no_minus_end_lines_and_words_go_on() -> None:
    hyphens = {"-": "<2D> <2010>", "~": "<7E> <00AD>"}
    for mark, meaning in hyphens.items():
        lines = page(f"A line with hy{mark}", f"phens of a brow{mark}", "ser.", "And so on.")
        assert of(make.pdf([lines], unicode=meaning), "a.pdf") == [
            "paragraph: A line with hyphens of a browser. And so on."
        ]


def test_several_hyphens_of_a_word_and_a_word_without_an_end() -> None:
    endless = "0f" * 50_000
    pieces = [Piece("paragraph", "By ISO\x028601\x02A."), Piece("paragraph", endless)]
    joined = [piece.text for piece in _without_hyphenation(pieces)]
    assert joined == ["By ISO-8601-A.", endless]


def test_ligatures_of_fonts_of_pictures_are_letters() -> None:
    lines = page("Five o\x0eces di\x0ber in \x0crst e\x1bects, not in \x0bA.")
    data = make.pdf([lines])
    expected = "Five offices differ in first effects, not in A."
    nameless = data.replace(b"/BaseFont/Helvetica/", b"/NoFont/Helvetica/")
    assert convert(nameless, "a.pdf").text == expected
    assert "first" not in convert(data, "a.pdf").text


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            "see https://example.org/docs/",
            "index.html and pages 12\x96",
            "docs/index.html and pages 12\u201314.",
        ),
        (
            "see https://example.org/docs/",
            "2 and so on - pages 12 \x96",
            "docs/ 2 and so on - pages 12 \u2013 14.",
        ),
        ("both short-", "and long-term things or", "both short and long-term things or 14."),
    ],
)
def test_lines_end_within_addresses_and_at_dashes(first: str, second: str, expected: str) -> None:
    text = convert(make.pdf([page(first, second.replace("\x96", "\u2013"), "14.")]), "a.pdf").text
    assert text.endswith(expected)


@pytest.mark.parametrize(
    ("shown", "meaning", "expected"),
    [
        (b"[(A)1500(B)]TJ", "<41> <0628> endbfchar 1 beginbfchar <42> <0629>", "\u0628\u0629"),
        (b"(BA)Tj", "<41> <06440627> endbfchar 1 beginbfchar <42> <0628>", "\u0644\u0627\u0628"),
    ],
    ids=["backwards", "two letters in a glyph"],
)
def test_arabic_words_are_read_from_right_to_left(
    shown: bytes, meaning: str, expected: str
) -> None:
    data = make.pdf([[(80.0, 700.0, 10.0, "F", "AB")]], unicode=meaning)
    assert convert(data.replace(b"(AB) Tj", shown), "a.pdf").text == expected


def test_lines_of_chinese_are_no_code_and_joined_without_a_blank() -> None:
    lines = [(*place, "C", text) for (*place, _, text) in page("AA", "AA")]
    data = make.pdf([lines], unicode="<41> <56FE>")
    assert of(data, "a.pdf") == ["paragraph: 图图图图"]


def test_headings_of_papers_that_are_neither_larger_nor_bold() -> None:
    lines = page(
        "", "II. RELATED WORK", "It is known.", "", "I. Smith knew.", "", "REFERENCES", "[1]"
    )
    lines[0] = (50.0, 740.0, 16.0, "F", "A title")
    for place, text in ((3, "A. Notes"), (5, "Or so")):
        lines[place] = (*lines[place][:3], "B", text)
    data = make.pdf([lines]).replace(b"/Helvetica-Bold/", b"/Helvetica-Oblique/")
    converted = convert(data, "a.pdf")
    assert texts(converted, "heading") == ["A title", "II. RELATED WORK", "A. Notes", "REFERENCES"]
    assert levels(converted) == [1, 2, 3, 2]


def test_entries_of_a_list_stay_apart_where_a_page_ends() -> None:
    pages = [page("a) the first entry"), page("b) the second entry")]
    assert of(make.pdf(pages), "a.pdf") == ["item: a) the first entry", "item: b) the second entry"]


def test_entries_with_numbers_of_two_digits_may_have_no_blank() -> None:
    entries = of(
        make.pdf([page("9. start of day", "10.weekday", "2 of the week", "11.now")]), "a.pdf"
    )
    assert entries == ["item: 9. start of day", "item: 10. weekday 2 of the week", "item: 11. now"]


def test_accents_of_two_words_may_follow_each_other() -> None:
    """PDFium puts blanks around them."""
    parts = [("C", 50.0, "fur Anw"), ("C", 56.0, "¨"), ("C", 92.0, "¨"), ("F", 92.5, "alte")]
    line = [(x, 700.0, 10.0, font, text) for font, x, text in parts]
    assert convert(make.pdf([line]), "a.pdf").text == "für Anwälte"


def test_fonts_of_tex_are_known() -> None:
    lines = page("Options", "The text goes on to its end.", "--verbose", "The end of the text.")
    fonts = ("B", "F", "C", "F")
    drawn = [(*place, font, text) for (*place, _, text), font in zip(lines, fonts, strict=True)]
    data = make.pdf([drawn])
    for name, name_in_tex in (
        (b"Helvetica-Bold", b"NimbusRomNo9L-Medi"),
        (b"Courier", b"SFTT1000"),
    ):
        data = data.replace(b"/" + name + b"/", b"/" + name_in_tex + b"/")
    kinds = [block.split(":")[0] for block in of(data, "a.pdf")]
    assert kinds == ["heading", "paragraph", "code", "paragraph"]


@pytest.mark.parametrize("size", [7.0, 13.0])
def test_a_bullet_of_another_size_makes_no_heading_and_ends_no_entry(size: float) -> None:
    lines = page("The text.", " " * 4 + "an entry that goes", " " * 4 + "on.", "After it.")
    lines.insert(1, (50.0, 687.0, size, "F", "•"))
    assert of(make.pdf([lines]), "a.pdf") == [
        "paragraph: The text.",
        "item: • an entry that goes on. After it.",
    ]


def test_paragraphs_begin_with_an_indentation() -> None:
    lines = page(*(["It begins and", "goes on to", "its end."] * 2))
    lines[3:] = [(x + 15.0 * (n == 0), y, *rest) for n, (x, y, *rest) in enumerate(lines[3:])]
    lines += [(65.0, 600.0 + 22, 10.0, "F", "So does this.")]
    assert of(make.pdf([lines]), "a.pdf") == [
        *["paragraph: It begins and goes on to its end."] * 2,
        "paragraph: So does this.",
    ]


@pytest.mark.parametrize(
    ("letters", "accent", "x", "expected"),
    [
        (("Mu", "ller"), "¨", 56.0, "Müller"),
        (("Mu", "ller"), "´", 51.0, "Ḿuller"),
        # Raised glyphs come at the end of the line.
        (("Ce ", "ne va"), "¸", 50.0, "Çe ne va"),
        (("l ", "amour"), "´", 56.0, "l \u0301amour"),
    ],
)
def test_accents_that_are_glyphs_are_put_on_their_letters(
    letters: Sequence[str], accent: str, x: float, expected: str
) -> None:
    start, end = letters
    line = [
        (50.0, 700.0, 10.0, "C", start),
        (50.0 + 6 * len(start), 700.0, 10.0, "F", end),
        (x, 700.0, 10.0, "C", accent),
    ]
    assert convert(make.pdf([line]), "a.pdf").text == expected


def test_bullets_of_symbol_fonts_are_bullets() -> None:
    line = Line("\uf0b7 Trains", 0, 50.0, 50.0, 10.0, False, False, 800.0)
    assert _text_piece([line], ["1"]) == Piece("item", "• Trains", pages=("1",))


def test_labels_that_pages_share_are_numbers_instead() -> None:
    pages = list(map(page, ("Volume one.", "It ends.", "Volume two.")))
    converted = convert(make.pdf(pages, labels="0<</S/D>>2<</S/D>>"), "a.pdf")  # 1, 2, 1
    assert [page for _, page in converted.pages] == ["1", "2", "3"]


@pytest.mark.parametrize("text", ["a  b\fcd", "e\u0301 \f x", "\fx", "x\f"])
def test_places_of_pages_are_those_of_the_cleaned_text(text: str) -> None:
    converted = assemble("", [Piece("paragraph", text, pages=("1", "2")), Piece("code", "c")])
    (at, label), *others = converted.pages[1:]
    expected = clean(text.split("\f")[1])
    assert (label, converted.text[at:].split("\n")[0]) == ("2", expected)
    assert [label for _, label in others] == [""]  # where pages end, as those of an attachment do


def test_a_table_of_contents_is_no_text() -> None:
    contents = page(*(f"Part {n} . . . . . . . . {n + 3}" for n in range(12)))
    converted = convert(make.pdf([contents, page("The text.")]), "a.pdf")
    assert blocks(converted) == ["paragraph: The text."]


def test_a_page_without_characters_is_said_to_be_so() -> None:
    text = page("Some text here.")
    strokes = [(), (), [(0.0, 0.0, 9.0, 9.0)], ()]
    data = make.pdf([text, text, [], []], strokes=strokes)
    # The last page is empty.
    lacking = "1 of 4 pages show something without characters, such as a scan: 3"
    damaged = "1 of 4 pages are damaged"
    assert convert(data, "a.pdf").notes == (lacking,)
    converted = convert(data.replace(b"/Type/Page/", b"/Type/None/", 1), "a.pdf")
    assert (converted.notes, converted.pages) == ((lacking, damaged), ((0, "2"),))


def test_a_single_page_without_characters_of_many_is_named() -> None:
    pages = [page("Some text here.") for _ in range(12)]
    pages[4] = []
    data = make.pdf(pages, strokes=[[(0.0, 0.0, 9.0, 9.0)]] * 12, labels="0 <</S/r>>")
    counted = "1 of 12 pages show something without characters"
    assert convert(data, "a.pdf").notes == (f"{counted}, such as a scan: v",)


def test_what_is_filled_in_a_form_and_written_over_a_page_is_read() -> None:
    form = make.filled_form("Name of the applicant:", "Maria Huber", "Approved by Bo.")
    assert convert(form, "a.pdf").text == "Name of the applicant: Maria Huber Approved by Bo."


def test_letters_beyond_sixteen_bits_are_read() -> None:
    line = [(50.0, 700.0, 10.0, "F", "x = A holds.")]
    source = make.pdf([line], unicode="<41> <D835DFD3>")
    assert convert(source, "a.pdf").text == "x = 5 holds."


@pytest.mark.parametrize(
    ("before", "raised", "height", "after", "expected"),
    [
        ("It moves 10", "6", 4.0, "litres.", "It moves 10^6 litres."),
        # So far up that PDFium ends the line.
        ("It moves 10", "-6", 6.0, "litres.", "It moves 10^-6 litres."),
        ("See pages 10", "-6", 0.0, "there.", "See pages 10-6 there."),
        ("It is so", "1", 4.0, "today.", "It is so1 today."),
    ],
)
def test_a_raised_digit_is_an_exponent_and_ends_no_line(
    before: str, raised: str, height: float, after: str, expected: str
) -> None:
    line = [
        (50.0, 700.0, 10.0, "C", before),
        (50.0 + 6.0 * len(before), 700.0 + height, 7.0 if height else 10.0, "F", raised),
        (60.0 + 6.0 * len(before) + 4.0 * len(raised), 700.0, 10.0, "F", after),
    ]
    assert convert(make.pdf([line]), "a.pdf").text == expected


@pytest.mark.parametrize(
    "numbers", [range(1990, 2002), [0, 2, 4, 1, 3, 0, 2, 4, 1, 3, 0, 2]], ids=["years", "prices"]
)
def test_a_list_that_ends_in_numbers_is_no_table_of_contents(numbers: Sequence[int]) -> None:
    lines = [f"Office {name} has {n}" for name, n in zip("abcdefghijkl", numbers, strict=True)]
    converted = convert(make.pdf([page(*lines), page("The text.")]), "a.pdf")
    assert converted.text.startswith(" ".join(lines[:2]))


@pytest.mark.parametrize(
    "line", ["Seite 3 von 12", "11/30/26, 6:16 PM Title", "https://example.org/a?b=1 1/1"]
)
def test_what_a_browser_prints_at_the_edge_of_a_page_is_no_text(line: str) -> None:
    lines = [*page("The text."), (50.0, 20.0, 8.0, "F", line)]
    assert convert(make.pdf([lines]), "a.pdf").text == "The text."


@pytest.mark.parametrize("line", ["We waited and waited....", "Name: ____________"])
def test_a_line_that_ends_in_dots_or_blanks_without_a_number_is_read(line: str) -> None:
    assert convert(make.pdf([page(line)]), "a.pdf").text == line


def test_a_line_at_the_edge_of_a_page_may_begin_or_end_in_the_number_of_the_page() -> None:
    heading = (50.0, 800.0, 16.0, "F", "1 Introduction")
    last = (50.0, 40.0, 10.0, "F", "The number of seats rose to 1")
    text = convert(make.pdf([[heading, *page("The text."), last]]), "a.pdf").text
    assert text == "1 Introduction\n\nThe text.\n\nThe number of seats rose to 1"


def test_running_heads_and_numbers_that_are_first_or_last_may_stand_further_inside() -> None:
    pages = []
    for number in range(3):
        head = (50.0, 725.0, 9.0, "F", "On bread and cheese")
        foot = (50.0, 130.0, 9.0, "F", str(number + 8))
        pages.append([head, *page("It is old.", "7"), foot])
    pages[0][0] = (50.0, 725.0, 9.0, "F", "1996")
    assert of(make.pdf(pages), "a.pdf") == ["paragraph: 1996", *["paragraph: It is old. 7"] * 3]


def test_running_heads_beside_the_number_of_the_page_are_no_text() -> None:
    pages = []
    for number, chapter in enumerate(("Bread", "Cheese", "Olives"), start=1):
        head = (50.0, 820.0, 9.0, "F", f"{number} {chapter} and its history")
        pages.append([head, *page(f"{chapter} is old.")])
    assert "history" not in convert(make.pdf(pages), "a.pdf").text
