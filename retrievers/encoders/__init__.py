"""Encoders: settings, files, loading, export, import of published checkpoints."""
