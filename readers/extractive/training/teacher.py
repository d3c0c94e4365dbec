"""A teacher reader, whose distributions over spans, "not here" and passages a student learns.

Teacher and student read the same rows: the same crop of a passage beside the same question, anew at
every step, so that the student learns a function and not a table of targets.

Source:
    Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network", section 2; Beyer
    et al. 2022, "Knowledge distillation: A good teacher is patient and consistent", section 3.
"""

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rag.core.errors import ConfigError
from rag.runtime.hardware import resolve_precision
from readers.extractive.files import load_span_model
from readers.extractive.layout import PairTemplate, pair_template
from readers.extractive.model import Logits, SpanModel

# with case, accents, punctuation, parts of words
_SPLIT_ALIKE = "Café-Gespräch (3.5), BERT's e-mail! Naïve STRASSE?"


class Teacher:
    """A reader that computes logits for the rows of a student.

    Both must split texts into the same word pieces; ids and special tokens may differ, as those of
    MPNet and of BERT do.

    Args:
        model: the teacher's network, on its device, in its dtype.
        pieces: (V,) int64, the teacher's id of each token of the student.
        students, teachers: special tokens around a pair, of each.
    """

    def __init__(
        self, model: SpanModel, pieces: Tensor, students: PairTemplate, teachers: PairTemplate
    ) -> None:
        self.model = model.eval()
        self.pieces = pieces
        self._students_template = students
        self._teachers_template = teachers
        self._shift = len(teachers.between) - len(students.between)

    @classmethod
    def load(
        cls,
        source: str,
        tokenizer: PreTrainedTokenizerBase,
        *,
        precision: str,
        device: str,
        passage_head: bool = False,
    ) -> "Teacher":
        """Load a folder of `rag train reader`, or the reader that ships ("shipped").

        Args:
            tokenizer: that of the student.
            passage_head: whether passages, "yes" and "no" are taught too.

        Raises:
            ArtifactError: the reader there is damaged.
            ConfigError: there is no such reader, it splits texts otherwise than the student, or
                lacks a head.
        """
        loaded = load_span_model(source)
        if loaded is None:
            raise ConfigError(
                f"teacher is {source!r}, which is no reader",
                hint="name the folder OUT/reader of a `rag train reader`, or shipped",
            )
        model, other = loaded
        if passage_head and model.passage_head is None:
            raise ConfigError(
                f"the teacher {source} has no logit of the passage",
                hint="set answer_types=false and selection_weight=0, or take a reader trained with them",
            )
        pieces = _pieces(tokenizer, other)
        problem = ""
        for name, piece in pieces.items():
            if piece is None and "[unused" not in name:
                problem = f"does not know the token {name!r}"
                break
        if not problem and tokenizer.tokenize(_SPLIT_ALIKE) != other.tokenize(_SPLIT_ALIKE):
            problem = f"splits otherwise: {_SPLIT_ALIKE}"
        if problem:
            raise ConfigError(
                f"the teacher {source} {problem}",
                hint="take a teacher whose tokenizer splits texts into the student's word pieces",
            )
        model.to(device).to_compute(resolve_precision(precision, device))
        unknown = other.unk_token_id
        ids = [unknown if piece is None else piece for piece in pieces.values()]
        pieces_of = torch.tensor(ids, device=device)
        return cls(model, pieces_of, pair_template(tokenizer), pair_template(other))

    @torch.no_grad()
    def logits(self, input_ids: Tensor, attention_mask: Tensor) -> Logits:
        """The teacher's logits at the student's tokens.

        Args:
            input_ids, attention_mask: (R, L) int64 rows of the student, padded on the right.
        """
        rows, length = input_ids.shape
        # (R, 1) the end of the question
        first = (input_ids == self._students_template.separator).int().argmax(1, keepdim=True)
        column = torch.arange(length + self._shift, device=input_ids.device).expand(rows, -1)
        source = torch.where(column <= first, column, torch.maximum(column - self._shift, first))
        ids = self.pieces[input_ids].gather(1, source)
        mask = attention_mask.gather(1, source)
        low, middle, high = self._teachers_template.types
        second = first + (len(self._teachers_template.between) if middle == low else 0)
        types = torch.where((column >= second) & mask.bool(), high, low)
        read = self.model.logits(ids, mask, types)
        column = column[:, :length]
        shifted = torch.where(column <= first, column, column + self._shift)
        return read._replace(start=read.start.gather(1, shifted), end=read.end.gather(1, shifted))


def _pieces(
    tokenizer: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase
) -> dict[str, int | None]:
    """The other tokenizer's id of each token; None where it does not know it."""
    vocabulary = other.get_vocab()
    for role in ("cls", "sep", "pad", "unk", "mask"):
        name = getattr(tokenizer, f"{role}_token")
        vocabulary[name] = getattr(other, f"{role}_token_id")
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return {name: vocabulary.get(name) for name in names}
