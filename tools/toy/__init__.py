"""The makers of what `marl_ray/toy` holds: the task set (`python -m tools.toy.make_tasks`) and the base policy."""
