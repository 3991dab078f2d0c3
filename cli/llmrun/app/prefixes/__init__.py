"""The prefix cache at work: what a request need not evaluate, and what is kept for later."""
