"""Converters between the field's file formats, through one typed record."""
