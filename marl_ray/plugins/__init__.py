"""Optional parts of the package. Each folder is a plug-in: it registers its names with `PLUGIN` (`marl_ray.registry`),
imports the core, and is imported by nothing. A deleted folder leaves a package that trains and evaluates.
"""
