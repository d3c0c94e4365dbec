"""Readers that generate the answer: sequence-to-sequence and causal models over one or many
passages.
"""
