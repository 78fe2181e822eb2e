"""Moved to turnwise.loop_thread; this file goes when nobody imports it any more."""

from turnwise.loop_thread import run_blocking as run_blocking
from turnwise.loop_thread import shared_loop as shared_loop
