"""`penstock completion`: a script for bash, zsh or fish that completes commands, options and their values."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import Any

from penstock.cli.arguments import command
from penstock.cli.console import script

_BASH = """\
# bash completion of penstock: eval "$(penstock completion bash)"
_penstock() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words=%(commands)s
    elif [[ $word == -* ]]; then
        case ${COMP_WORDS[1]} in
%(options)s
        esac
    else
        case "${COMP_WORDS[1]} $before" in
%(values)s
        esac
    fi
    [ -z "$words" ] || COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -o bashdefault -F _penstock penstock
"""

_ZSH = """\
#compdef penstock
# zsh completion of penstock: eval "$(penstock completion zsh)", or this text as a file _penstock in a folder of $fpath
_penstock() {
    local -a commands
    commands=(
%(commands)s
    )
    if (( CURRENT == 2 )); then
        _describe -t commands 'command' commands
        [[ $words[CURRENT] != -* ]] || _arguments '--help[show help]' '--version[show the version]'
        return
    fi
    local command=$words[2]
    shift words
    (( CURRENT-- ))
    case $command in
%(options)s
    esac
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
if [ "$funcstack[1]" = _penstock ]; then _penstock "$@"; else compdef _penstock penstock; fi
"""


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(
        commands, "completion", "print a script that completes commands and options in a shell", run,
        more='bash: eval "$(penstock completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc;\n'
        "fish: penstock completion fish > ~/.config/fish/completions/penstock.fish",
        examples=["bash", "zsh", "fish"],
    )  # fmt: skip
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def run(args: argparse.Namespace) -> int:
    """Prints the script."""
    from penstock.cli.main import parser

    tree = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    about = {action.dest: action.help or "" for action in tree._choices_actions}
    found = dict(tree.choices.items())
    if args.shell == "fish":
        script("\n".join(_fish(found, about)) + "\n")
    elif args.shell == "zsh":
        script(_zsh(found, about))
    else:
        script(_bash(found))
    return 0


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    for action in parser._actions:
        for option in action.option_strings:
            yield option, action


def _choices(action: argparse.Action) -> str:
    return " ".join(map(str, action.choices or ()))


def _named(parser: argparse.ArgumentParser) -> str:
    """The values of an argument without an option, if only some are allowed."""
    return " ".join(_choices(action) for action in parser._actions if not action.option_strings and action.choices)


def _about(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%")


def _bash(found: dict[str, argparse.ArgumentParser]) -> str:
    options, values = [], []
    for name, parser in found.items():
        names = " ".join(option for option, _ in _options(parser) if option.startswith("--"))
        options.append(f"            {name}) words={shlex.quote(names)} ;;")
        for option, action in _options(parser):
            if action.choices:
                values.append(
                    f"            {shlex.quote(f'{name} {option}')}) words={shlex.quote(_choices(action))} ;;"
                )
        if named := _named(parser):
            values.append(f"            {shlex.quote(f'{name} ')}*) words={shlex.quote(named)} ;;")
    commands = shlex.quote(" ".join([*found, "--help", "--version"]))
    return _BASH % {"commands": commands, "options": "\n".join(options), "values": "\n".join(values)}


def _fish(found: dict[str, argparse.ArgumentParser], about: dict[str, str]) -> Iterator[str]:
    yield "# fish completion of penstock"
    for name, parser in found.items():
        said = _fish_quoted(about.get(name, ""))
        yield f"complete -c penstock -n __fish_use_subcommand -f -a {name} -d {said}"
        for option, action in _options(parser):
            if option.startswith("--"):
                line = f"complete -c penstock -n '__fish_seen_subcommand_from {name}' -l {option[2:]}"
                line += f" -d {_fish_quoted(_about(action))}"
                if action.choices:
                    line += f" -x -a {_fish_quoted(_choices(action))}"
                elif action.nargs != 0:
                    line += " -r"
                yield line
        if named := _named(parser):
            yield f"complete -c penstock -n '__fish_seen_subcommand_from {name}' -f -a {_fish_quoted(named)}"


def _fish_quoted(text: str) -> str:
    """A text in quotes for fish, where quotes inside are escaped and not closed as in other shells."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _zsh(found: dict[str, argparse.ArgumentParser], about: dict[str, str]) -> str:
    commands = [shlex.quote(f"{name}:{about.get(name, '').replace(':', chr(92) + ':')}") for name in found]
    options = []
    for name, parser in found.items():
        specs = [shlex.quote(_zsh_spec(option, action)) for option, action in _options(parser)]
        named = _named(parser)
        specs.append(shlex.quote(f"*:{name}:({named})" if named else "*:file:_files"))
        options.append(f"        {name}) _arguments {' '.join(specs)} ;;")
    return _ZSH % {"commands": "\n".join(f"        {one}" for one in commands), "options": "\n".join(options)}


def _zsh_spec(option: str, action: argparse.Action) -> str:
    said = _about(action)
    for mark in "\\[]:":
        said = said.replace(mark, f"\\{mark}")
    value = "" if action.nargs == 0 else f":{action.dest}:({_choices(action)})" if action.choices else ":value:_files"
    return f"*{option}[{said}]{value}"
