"""Export of a trained team: complete models, `team.json` and a model card, in a folder or on the Hugging Face hub."""
