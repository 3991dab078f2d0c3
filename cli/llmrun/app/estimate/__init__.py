"""`llmrun estimate`: where rates come from, and what follows for a request."""
