"""Measures of cooperation, as pure functions of episodes and rewards, and the sentences that state them.

| file | content |
|---|---|
| `recombined_answers.py` | answers of different samples, combined and rewarded again |
| `credit_replay.py` | advantages beside the gain of an answer with the same partners |
| `revisions.py` | answers that later turns keep and mend |
| `token_counts.py` | tokens of an episode, in all and on its critical path |
| `run_sentences.py`, `evaluation_lines.py` | sentences about a run and about an evaluation |

Rewards come from callers: `rollout/step_measures.py` in training, `evaluation/recombination.py` in evaluations.
"""
