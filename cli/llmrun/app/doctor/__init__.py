"""`llmrun doctor`: findings about engine, machine, settings and models."""
