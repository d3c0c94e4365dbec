"""Tiny random models that every test may ask for; nothing is downloaded."""

import logging
import string
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chat_server import Server
from tests.support import messages


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        messages.OPTION,
        action="store_true",
        help="write the messages of errors that tests meet to tests/support/messages.json",
    )


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if isinstance(collector, pytest.Module | pytest.Class):
        messages.note_collected(collector.nodeid, {node.nodeid for node in report.result})
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    messages.begin()
    yield
    messages.compare(item.nodeid, rewrites=item.config.getoption(messages.OPTION))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of arithmetic that this processor lacks; what is refused there is tested
    everywhere.
    """
    for name in ("bf16", "int8"):
        if item.get_closest_marker(f"needs_{name}"):
            from rag.runtime import hardware

            if name not in hardware.precisions():
                pytest.skip(f"this processor has no {name} arithmetic")


_BASES: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16},
    "distilbert": {"dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 48},
    "xlm-roberta": {"max_position_embeddings": 66},
    "mpnet": {"max_position_embeddings": 66},
    "modernbert": {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8, "bos_token_id": 2, "eos_token_id": 3},
}


class TinyModels:
    """Writes small Hugging Face folders with random weights and a working tokenizer."""

    max_tokens = 64

    def tokenizer(self, folder: Path) -> None:
        from tokenizers import processors
        from transformers import PreTrainedTokenizerFast

        from tests.tiny_reader import SPECIAL, word_pieces

        letters = list(string.ascii_lowercase + string.digits + "éß中")
        words = [
            "the",
            "who",
            "wrote",
            "danube",
            "rises",
            "in",
            "black",
            "forest",
            "river",
            "title",
            "text",
        ]
        pieces = [
            *SPECIAL,
            *string.punctuation,
            *letters,
            *("##" + letter for letter in letters),
            *words,
            "[unused0]",
            "[unused1]",
        ]
        tokenizer = word_pieces(pieces, "[UNK]")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(name, SPECIAL.index(name)) for name in ("[CLS]", "[SEP]")],
        )
        wrapped = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            unk_token="[UNK]",
            pad_token="[PAD]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
            model_max_length=self.max_tokens,
        )
        wrapped.save_pretrained(folder)

    def config(self, **changes: Any) -> dict[str, Any]:
        return {
            "vocab_size": 128,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": self.max_tokens,
            "initializer_range": 0.3,
            **changes,
        }

    def bert(self, folder: Path, *, seed: int = 0, **changes: Any) -> Path:
        """A plain BERT folder."""
        import torch
        from transformers import BertConfig, BertModel

        torch.manual_seed(seed)
        BertModel(BertConfig(**self.config(**changes)), add_pooling_layer=False).save_pretrained(
            folder
        )
        self.tokenizer(folder)
        return folder

    def base(self, folder: Path, family: str) -> Path:
        """A plain encoder of another architecture."""
        import torch
        from transformers import AutoConfig, AutoModel

        torch.manual_seed(1)
        settings = {**self.config(), **_BASES.get(family, {}), "pad_token_id": 0}
        if family == "distilbert":  # the usual names would win over its own
            settings = {
                k: v
                for k, v in settings.items()
                if not k.startswith(("num_", "hidden_s", "interm"))
            }
        AutoModel.from_config(AutoConfig.for_model(family, **settings)).save_pretrained(folder)
        self.tokenizer(folder)
        return folder

    def dpr(self, folder: Path, *, seed: int = 0, projection_dim: int = 0) -> Path:
        """Both DPR towers, in the sub-folders ctx_encoder and question_encoder."""
        import torch
        from transformers import DPRConfig, DPRContextEncoder, DPRQuestionEncoder

        torch.manual_seed(seed)
        config = DPRConfig(**self.config(), projection_dim=projection_dim)
        for name, kind in (
            ("ctx_encoder", DPRContextEncoder),
            ("question_encoder", DPRQuestionEncoder),
        ):
            kind(config).save_pretrained(folder / name)
            self.tokenizer(folder / name)
        return folder

    def sentence_transformer(
        self,
        folder: Path,
        *,
        pooling: str = "mean",
        normalize: bool = True,
        dense: int = 0,
        prompts: dict[str, str] | None = None,
        similarity: str | None = None,
    ) -> Path:
        """A folder written by sentence-transformers itself; skips the test where it is not
        installed.
        """
        library = pytest.importorskip("sentence_transformers")
        from sentence_transformers import sentence_transformer as package

        modules = package.modules
        self.bert(folder / "bare")
        parts = [modules.Transformer(str(folder / "bare"), max_seq_length=24)]
        parts.append(modules.Pooling(32, pooling))
        if dense:
            parts.append(modules.Dense(32, dense))
        if normalize:
            parts.append(modules.Normalize())
        model = library.SentenceTransformer(
            modules=parts, prompts=prompts, similarity_fn_name=similarity, device="cpu"
        )
        model.save_pretrained(str(folder / "st"))
        return folder / "st"

    def late_interaction(self, folder: Path, *, dim: int = 6, seed: int = 1) -> Any:
        """A folder as sentence-transformers' `MultiVectorEncoder` writes it; its linear layer's
        weight.
        """
        import torch
        from safetensors.torch import save_file

        from tests.support.files import write_json, write_modules

        self.bert(folder)
        torch.manual_seed(seed)
        weight = torch.randn(dim, 32)
        kinds = ("Transformer", "Dense", "MultiVectorMask", "Normalize")
        write_modules(folder, *kinds, home="sentence_transformers")
        files: dict[str, Any] = {
            "config_sentence_transformers.json": {"similarity_fn_name": "maxsim"},
            "sentence_bert_config.json": {"query_length": 32, "document_length": 40},
            "1_Dense/config.json": {"activation_function": "torch.nn.modules.linear.Identity"},
            "2_MultiVectorMask/config.json": {"skiplist_words": list(string.punctuation)},
        }
        for name, content in files.items():
            write_json(folder / name, content)
        save_file({"linear.weight": weight}, folder / "1_Dense" / "model.safetensors")
        return weight


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """What a command set up for its log records does not outlive its test."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    level = root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that speaks the chat protocol."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def tiny() -> TinyModels:
    return TinyModels()


@pytest.fixture(scope="session")
def tiny_bert(tiny: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One plain BERT folder, shared by the tests that only read it."""
    return tiny.bert(tmp_path_factory.mktemp("models") / "tiny-bert")
