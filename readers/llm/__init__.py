"""Language models as readers: behind an OpenAI-compatible address, or from a local folder."""
