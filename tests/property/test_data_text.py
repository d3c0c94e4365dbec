"""Properties of tokenising, normalising and matching."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rag.data.text import AnswerMatcher, nfd, simple_tokenize

texts = st.text(max_size=60)
words = st.lists(st.text(alphabet="abcXYZé'.-1ΣςÄ ", min_size=1, max_size=6), max_size=12).map(
    " ".join
)


@settings(deadline=None)
@given(texts)
def test_tokens_lose_only_separators_and_control_characters(text: str) -> None:
    tokens = simple_tokenize(text)
    assert all(tokens)
    assert simple_tokenize(" ".join(tokens)) == tokens


@settings(deadline=None)
@given(words, words)
def test_has_answer_equals_the_search_token_by_token(answer: str, text: str) -> None:
    needle = [token.lower() for token in simple_tokenize(nfd(answer))]
    haystack = [token.lower() for token in simple_tokenize(nfd(text))]
    expected = bool(needle) and any(
        haystack[i : i + len(needle)] == needle for i in range(len(haystack) - len(needle) + 1)
    )
    assert AnswerMatcher([answer]).matches(text) is expected
    assert AnswerMatcher(["no such words", answer]).matches(text) is expected
