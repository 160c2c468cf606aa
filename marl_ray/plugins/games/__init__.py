"""Games of other packages, which the agents play through the gateway, and tiny base policies for three of them."""

from pathlib import Path

from marl_ray.registry import PlugIn

FOLDER = Path(__file__).parent
KUHN_BASE_PATH = FOLDER / "kuhn_base"
TIC_TAC_TOE_BASE_PATH = FOLDER / "tic_tac_toe_base"
HANABI_BASE_PATH = FOLDER / "hanabi_base"

PLUGIN = PlugIn(
    models={
        "bundled:toy-kuhn-base": KUHN_BASE_PATH,
        "bundled:toy-tic-tac-toe-base": TIC_TAC_TOE_BASE_PATH,
        "bundled:toy-hanabi-base": HANABI_BASE_PATH,
    },
)
