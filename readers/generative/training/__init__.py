"""Training generative readers: warm start, denoising, questions."""
