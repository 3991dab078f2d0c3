"""Memory before anything is loaded: devices, plans of offload, refusals, `llmrun vram`."""
