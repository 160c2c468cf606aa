"""Letters as drawings of five by five positions."""

from __future__ import annotations

HEIGHT = 5
WIDTH = 5
SPACING = 2
EMPTY = "."
FULL = "#"

_GLYPHS = """
A .###. #...# #####  #...# #...#
B ####. #...# ####. #...# ####.
C .#### #.... #.... #.... .####
D ####. #...# #...# #...# ####.
E ##### #.... ###.. #.... #####
F ##### #.... ###.. #.... #....
G .#### #.... #..## #...# .####
H #...# #...# ##### #...# #...#
I .###. ..#.. ..#.. ..#.. .###.
J ..### ...#. ...#. #..#. .##..
K #..#. #.#.. ##... #.#.. #..#.
L #.... #.... #.... #.... #####
M #...# ##.## #.#.# #...# #...#
N #...# ##..# #.#.# #..## #...#
O .###. #...# #...# #...# .###.
P ####. #...# ####. #.... #....
Q .###. #...# #.#.# #..#. .##.#
R ####. #...# ####. #..#. #...#
S .#### #.... .###. ....# ####.
T ##### ..#.. ..#.. ..#.. ..#..
U #...# #...# #...# #...# .###.
V #...# #...# .#.#. .#.#. ..#..
W #...# #...# #.#.# ##.## #...#
X #...# .#.#. ..#.. .#.#. #...#
Y #...# .#.#. ..#.. ..#.. ..#..
Z ##### ...#. ..#.. .#... #####
"""
GLYPHS = {}
for _line in _GLYPHS.strip().split("\n"):
    GLYPHS[_line[0]] = _line.split()[1:]
SPACE = [EMPTY * WIDTH] * HEIGHT


def drawing(word: str) -> tuple[str, ...]:
    """Return the rows of a word, from top to bottom. Raises KeyError for other characters than letters and spaces.

    Example:
        >>> drawing("li")[0]
        '#.........###.'
    """
    letters = []
    for letter in word.upper():
        letters.append(SPACE if letter == " " else GLYPHS[letter])
    rows = []
    for parts in zip(*letters, strict=True):
        rows.append((EMPTY * SPACING).join(parts))
    return tuple(rows)
