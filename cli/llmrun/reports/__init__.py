"""What use-cases find, as values that `app` or `store` make and `ui` shows."""
