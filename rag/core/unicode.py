"""Halves of surrogate pairs, which JSON and Python's strings may hold and UTF-8 may not."""


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8.

    Example:
        >>> is_unicode("caf\\u00e9"), is_unicode("caf\\ud800")
        (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_unicode(text: str) -> str:
    """The text with question marks for halves of surrogate pairs.

    Example:
        >>> as_unicode("caf\\ud800")
        'caf?'
    """
    return text.encode("utf-8", "replace").decode("utf-8")
