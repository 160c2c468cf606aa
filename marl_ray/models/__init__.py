"""Resolution of model names, checks of model folders, adapters and tokenizers."""
