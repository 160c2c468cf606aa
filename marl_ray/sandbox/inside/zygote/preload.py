"""Modules imported before the first fork, which guests find loaded.

Every module makes each fork dearer (above all shared libraries: `hashlib` alone costs a fifth of a fork), so COMMON has
only the modules that programs use most. RARE has other modules that a program might use, for guests that cannot read
the library: no file may be opened (no path rule), or Python lies in a folder that only its owner may enter.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

COMMON = """
bisect collections collections.abc contextlib copy dataclasses datetime decimal enum fractions functools heapq io
itertools json math numbers operator os os.path random re string sys time typing encodings.ascii encodings.latin_1
encodings.utf_8
"""

RARE = """
_strptime abc argparse array ast asyncio base64 binascii bz2 cProfile calendar cmath codecs colorsys concurrent.futures
concurrent.futures.thread configparser copyreg csv ctypes difflib dis doctest email.message email.mime.text email.policy
encodings.big5 encodings.cp037 encodings.cp1250 encodings.cp1251 encodings.cp1252 encodings.cp437 encodings.cp850
encodings.euc_jp encodings.euc_kr encodings.gb18030 encodings.gb2312 encodings.gbk encodings.hex_codec encodings.idna
encodings.iso8859_15 encodings.iso8859_2 encodings.koi8_r encodings.mac_roman encodings.punycode
encodings.raw_unicode_escape encodings.rot_13 encodings.shift_jis encodings.unicode_escape encodings.utf_16
encodings.utf_16_be encodings.utf_16_le encodings.utf_32 encodings.utf_7 encodings.utf_8_sig filecmp fileinput fnmatch
gc getopt getpass gettext glob graphlib gzip hashlib hmac html html.entities html.parser http http.cookies imaplib
importlib.abc importlib.util inspect ipaddress keyword linecache locale logging logging.handlers lzma marshal mimetypes
multiprocessing opcode optparse pathlib pickle pickletools platform plistlib pprint pstats queue quopri reprlib resource
sched secrets select selectors shelve shlex shutil signal smtplib socket sqlite3 stat statistics stringprep struct
subprocess symtable sysconfig tabnanny tarfile tempfile textwrap threading timeit token tokenize tomllib trace traceback
tracemalloc types unicodedata unittest unittest.mock urllib.parse urllib.request urllib.robotparser uuid warnings wave
weakref xml.dom.minidom xml.etree.ElementTree zipfile zlib zoneinfo
"""


def load(names: str) -> None:
    """Import these modules; modules that this interpreter was built without are skipped."""
    for name in names.split():
        try:
            __import__(name)
        except ImportError:
            pass


def load_packages(names: Sequence[str], roots: Sequence[str]) -> None:
    """Import packages from these folders, which are not searched afterwards. Raises OSError that names the package."""
    path = sys.path[:]
    sys.path += roots
    for name in names:
        try:
            __import__(name)
        except Exception as error:  # a package may raise anything
            raise OSError(f"sandbox.packages: {name} cannot be imported: {error}") from None
    sys.path[:] = path
    numpy = sys.modules.get("numpy")
    if numpy is not None:  # guests inherit its global generator, which was seeded at random
        numpy.random.seed(0)
