"""What a request goes through: prompt, room in the context, decode, text, figures."""
