"""What a text may hold: no halves of surrogate pairs in UTF-8, only printable ASCII in an HTTP header.

JSON and Python's strings may hold halves of surrogate pairs.
"""

from rag.core.errors import ConfigError


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


def check_header(value: str, what: str, *, hint: str) -> None:
    """Refuse a key that no HTTP header can carry; the message does not show it.

    Args:
        what: name of the key, for the message.

    Raises:
        ConfigError: it is not printable ASCII.
    """
    if not (value.isascii() and value.isprintable()):
        raise ConfigError(f"{what} has characters that no HTTP header can carry", hint=hint)
