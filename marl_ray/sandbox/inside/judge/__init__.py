"""The judge process: runs no code of a program, and treats every message of a guest as untrusted input."""
