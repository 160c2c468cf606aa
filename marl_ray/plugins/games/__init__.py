"""Games of other packages, which the agents play through the gateway, and tiny base policies for three of them."""

from pathlib import Path

from marl_ray.registry import PlugIn

KUHN_BASE_PATH = Path(__file__).parent / "kuhn_base"
TIC_TAC_TOE_BASE_PATH = Path(__file__).parent / "tic_tac_toe_base"
HANABI_BASE_PATH = Path(__file__).parent / "hanabi_base"

PLUGIN = PlugIn(
    models={
        "bundled:toy-kuhn-base": KUHN_BASE_PATH,
        "bundled:toy-tic-tac-toe-base": TIC_TAC_TOE_BASE_PATH,
        "bundled:toy-hanabi-base": HANABI_BASE_PATH,
    },
)
