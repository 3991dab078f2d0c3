"""Fixtures written in code: model files whose behaviour is known."""
