"""Which model a name means, where its files are, and its tokenizer."""
