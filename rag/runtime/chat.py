"""What stands around a text: the parts of a model's chat template."""

from typing import Any

_MARK = "\u2063content\u2063"  # characters that no chat template knows


def chat_frame(tokenizer: Any, plain_end: str) -> tuple[str, str]:
    """The text of a chat template before and after a user's message, up to where the reply begins.

    Args:
        tokenizer: perhaps with a chat template.
        plain_end: text before the reply, for use without a template or where the template has none.

    Example:
        >>> class Plain:
        ...     chat_template = None
        >>> chat_frame(Plain(), "Answer:")
        ('', 'Answer:')
    """
    if not getattr(tokenizer, "chat_template", None):
        return "", plain_end
    made = tokenizer.apply_chat_template(
        [{"role": "user", "content": _MARK}], add_generation_prompt=True, tokenize=False
    )
    before, _, after = str(made).partition(_MARK)
    bos = getattr(tokenizer, "bos_token", None)
    if bos and before.startswith(bos) and tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id:
        before = before.removeprefix(bos)  # the tokenizer puts it there by itself
    return before, after if after.strip() else plain_end
