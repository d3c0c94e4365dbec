"""Training generative readers: warm start, questions."""
