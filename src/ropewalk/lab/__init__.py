"""Experiments with models: real checkpoints, and small ones trained here."""
