"""`turnsmith completion`: a script that makes a shell complete commands, options and settings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any

from turnsmith.text import print_line

_DESCRIPTION = """\
Print a script that completes commands, options, settings and files when you
press Tab. It is read once when a shell starts."""

_EXAMPLES = """\
examples:
  echo 'source <(turnsmith completion bash)' >> ~/.bashrc
  echo 'source <(turnsmith completion zsh)' >> ~/.zshrc"""

_SCRIPT = """\
_turnsmith() {
  local current="${COMP_WORDS[COMP_CWORD]}" words=""
  if ((COMP_CWORD == 1)); then
    words="%(commands)s"
  else
    case "${COMP_WORDS[1]}" in
%(cases)s
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  ((COMP_CWORD > 1)) && COMPREPLY+=($(compgen -f -- "$current"))
  [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
}
complete -o filenames -F _turnsmith turnsmith
"""


def add_completion_command(commands: Any, build_parsers: Callable[[], Mapping[str, argparse.ArgumentParser]]) -> None:
    """Add `turnsmith completion` to the subparsers; it asks for all of them when it is run."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion", help="print a completion script for a shell", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    parser.add_argument("shell", choices=["bash", "zsh"])
    parser.set_defaults(run=_run, build_parsers=build_parsers)


def _run(args: argparse.Namespace) -> int:
    """Print the script."""
    print_line(completion_script(args.build_parsers(), args.shell).removesuffix("\n"), sys.stdout)
    return 0


def completion_script(parsers: Mapping[str, argparse.ArgumentParser], shell: str = "bash") -> str:
    """The script for these parsers, by name as in `turnsmith train`; zsh runs that of bash.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> _ = parser.add_argument("--model")
        >>> 'train) words="--help --model" ;;' in completion_script({"turnsmith train": parser})
        True
    """
    words = {name.partition(" ")[2]: _words(parser) for name, parser in parsers.items() if " " in name}
    cases = "\n".join(f'      {name}) words="{" ".join(found)}" ;;' for name, found in words.items())
    script = _SCRIPT % {"commands": " ".join(words), "cases": cases}
    return f"autoload -U +X bashcompinit && bashcompinit\n{script}" if shell == "zsh" else script


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """The long options of a command and, if it takes settings, their names."""
    from turnsmith.config_sources import known_keys

    actions = parser._actions  # pyright: ignore[reportPrivateUsage] - argparse lists them nowhere else
    options = sorted(word for action in actions for word in action.option_strings if word.startswith("--"))
    takes_settings = any(action.dest == "overrides" for action in actions)
    return options + ([f"{key}=" for key in known_keys()] if takes_settings else [])
