"""llmrun: run GGUF language models on one's own machine and see prefill, decode and the KV cache at work."""

__version__ = "0.1.0"
