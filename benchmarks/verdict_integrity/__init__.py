"""Integrity of verdicts: forging and honest programs, judged by the sandbox and by other scorers."""
