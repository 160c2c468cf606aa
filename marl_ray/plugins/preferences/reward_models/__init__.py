"""Reward models of joint preferences (`marl-ray rewardmodel`), and the environment that uses them."""
