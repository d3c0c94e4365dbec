"""What trains retriever and reader together: signals of a reader, rounds of distillation."""
