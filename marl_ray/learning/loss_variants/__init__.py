"""Losses for several optimizer steps per batch that treat the policy's ratios in another way than clipping them."""
