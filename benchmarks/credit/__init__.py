"""The credit audit: the estimators of `marl_ray.credit` on team games whose exact gradient can be enumerated."""
