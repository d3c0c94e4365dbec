"""The default encoder's folder, under the name retrievers use."""

from rag.runtime.embedded import EMBEDDED_ENCODER_NAMES, EMBEDDED_ENCODER_SHA256, embedded_encoder_dir

__all__ = ["EMBEDDED_ENCODER_NAMES", "EMBEDDED_ENCODER_SHA256", "embedded_encoder_dir"]
