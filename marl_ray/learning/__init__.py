"""Returns, advantages and losses as plain functions, and the learner actor that uses them."""
