"""Questions reworded, and questions made from public documents, by a language model."""
