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
        return 0
    head = "autoload -U +X bashcompinit && bashcompinit\n" if args.shell == "zsh" else ""
    script(head + _bash(found))
    return 0


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    for action in parser._actions:
        for option in action.option_strings:
            yield option, action


def _bash(found: dict[str, argparse.ArgumentParser]) -> str:
    options, values = [], []
    for name, parser in found.items():
        names = " ".join(option for option, _ in _options(parser) if option.startswith("--"))
        options.append(f"            {name}) words={shlex.quote(names)} ;;")
        for option, action in _options(parser):
            if action.choices:
                chosen = " ".join(map(str, action.choices))
                values.append(f"            {shlex.quote(f'{name} {option}')}) words={shlex.quote(chosen)} ;;")
    commands = shlex.quote(" ".join([*found, "--help", "--version"]))
    return _BASH % {"commands": commands, "options": "\n".join(options), "values": "\n".join(values)}


def _fish(found: dict[str, argparse.ArgumentParser], about: dict[str, str]) -> Iterator[str]:
    yield "# fish completion of penstock"
    for name, parser in found.items():
        said = shlex.quote(about.get(name, ""))
        yield f"complete -c penstock -n __fish_use_subcommand -f -a {name} -d {said}"
        for option, action in _options(parser):
            if option.startswith("--"):
                line = f"complete -c penstock -n '__fish_seen_subcommand_from {name}' -l {option[2:]}"
                line += f" -d {shlex.quote((action.help or '').replace('%%', '%'))}"
                if action.choices:
                    line += f" -x -a {shlex.quote(' '.join(map(str, action.choices)))}"
                yield line
