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
GLYPHS = {line[0]: line.split()[1:] for line in _GLYPHS.split("\n") if line}
SPACE = [EMPTY * WIDTH] * HEIGHT


def drawing(word: str) -> tuple[str, ...]:
    """Return the rows of a word, from top to bottom. Raises KeyError for other characters than letters and spaces.

    Example:
        >>> drawing("li")[0]
        '#.........###.'
    """
    letters = [SPACE if letter == " " else GLYPHS[letter] for letter in word.upper()]
    return tuple((EMPTY * SPACING).join(letter[row] for letter in letters) for row in range(HEIGHT))
