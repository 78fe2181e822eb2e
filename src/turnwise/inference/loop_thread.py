"""Moved to turnwise.loop_thread; this file goes when nobody imports it any more."""

from turnwise.loop_thread import LoopThread as LoopThread
