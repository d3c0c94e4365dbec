import pytest

from rag.core.errors import ConfigError
from retrievers.encoders.layout import PassageLayout


@pytest.mark.parametrize(
    ("layout", "first", "second"),
    [
        ("{title} {text}", ["p: T x", "p: y"], None),
        ("{text}", ["p: x", "p: y"], None),
        ("title: {title} context: {text}", ["p: title: T context: x", "p: y"], None),
        ("pair", ["p: T", "p: y"], ["x", ""]),
    ],
)
def test_render(layout, first, second):
    assert PassageLayout(layout).render(["T", ""], ["x", "y"], prefix="p: ") == (first, second)


def test_braces_in_texts_are_kept():
    assert PassageLayout("{title} {text}").render(["{a}"], ["{0} }{"])[0] == ["{a} {0} }{"]


@pytest.mark.parametrize("layout", ["{title}", "{text} {id}", "{text", "", "{text.__class__}", "{0}"])
def test_bad_layouts_are_refused(layout):
    with pytest.raises(ConfigError):
        PassageLayout(layout)
