"""Modules that a guest finds imported already.

COMMON: what programs for code tasks use most. Every module more makes each fork a little dearer (those with a
shared library above all: `hashlib` alone costs a fifth of a fork), so the list is short, and a guest imports
the rest by itself. RARE: what else a program might want. It is only loaded where guests cannot read the library any
more: no path rule, so no file may be opened; or an interpreter under a folder that only its owner may enter.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

COMMON = """
bisect collections collections.abc contextlib copy dataclasses datetime decimal enum fractions
functools heapq io itertools json math numbers operator os os.path random re string sys time
typing encodings.ascii encodings.latin_1 encodings.utf_8
"""

RARE = """
_strptime abc argparse array ast asyncio base64 binascii bz2 cProfile calendar cmath codecs colorsys concurrent.futures
concurrent.futures.thread configparser copyreg csv ctypes difflib dis doctest email.message
email.mime.text email.policy encodings.big5 encodings.cp037 encodings.cp1250 encodings.cp1251 encodings.cp1252
encodings.cp437 encodings.cp850 encodings.euc_jp encodings.euc_kr encodings.gb18030 encodings.gb2312 encodings.gbk
encodings.hex_codec encodings.idna encodings.iso8859_15 encodings.iso8859_2 encodings.koi8_r encodings.mac_roman
encodings.punycode encodings.raw_unicode_escape encodings.rot_13 encodings.shift_jis encodings.unicode_escape
encodings.utf_16 encodings.utf_16_be encodings.utf_16_le encodings.utf_32 encodings.utf_7
encodings.utf_8_sig filecmp fileinput fnmatch gc getopt getpass gettext glob graphlib gzip hashlib hmac html
html.entities html.parser http http.cookies imaplib importlib.abc importlib.util inspect ipaddress keyword linecache
locale logging logging.handlers lzma marshal mimetypes multiprocessing opcode optparse pathlib pickle pickletools
platform plistlib pprint pstats queue quopri reprlib resource sched secrets select selectors shelve
shlex shutil signal smtplib socket sqlite3 stat statistics stringprep struct subprocess symtable sysconfig tabnanny
tarfile tempfile textwrap threading timeit token tokenize tomllib trace traceback tracemalloc types unicodedata
unittest unittest.mock urllib.parse urllib.request urllib.robotparser uuid warnings wave weakref xml.dom.minidom
xml.etree.ElementTree zipfile zlib zoneinfo
"""


def load(names: str) -> None:
    """Import what there is of these; an interpreter built without some of them is fine."""
    for name in names.split():
        try:
            __import__(name)
        except ImportError:
            pass


def load_packages(names: Sequence[str], roots: Sequence[str]) -> None:
    """Import packages from these folders, which are not searched later on: what is not named is not there.

    Raises OSError, with the package's name, where that fails.
    """
    searched = sys.path[:]
    sys.path += roots
    for name in names:
        try:
            __import__(name)
        except Exception as error:  # whatever a package raises
            raise OSError(f"sandbox.packages: {name} cannot be imported: {error}") from None
    sys.path[:] = searched
    numpy = sys.modules.get("numpy")
    if numpy is not None:  # its module-level generator was seeded by chance, and guests inherit it
        numpy.random.seed(0)
