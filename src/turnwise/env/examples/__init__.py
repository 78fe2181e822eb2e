"""Small environments to try things with."""

from __future__ import annotations
