"""`llmrun bench`: what is measured in which order, and how quiet the machine was."""
